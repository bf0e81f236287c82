"""Many runs at once, and the paper's results as runs."""
