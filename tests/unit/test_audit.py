"""The audit: no edit goes unseen, half a line does no harm, and the suspicious are those who deserve it."""

import errno
import hashlib
import json
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseca.audit import BEGINNING, Audit, AuditError, Findings, conduct, is_chained, read_audit, verify
from fedseca.errors import FolderBusy, InputError
from fedseca.federation import Scenario, read_history, simulate
from fedseca.verdict import Kind, Verdict


def line(number, client="14", *, run=123, **more):
    return {"time": f"2026-11-16T09:{number % 60:02}:00+00:00", "run": run, "round": number, "client": client, **more}


def used(number, client="14", **more):
    return line(number, client, verdict="used", norm=1.2, weight=0.25, **more)


def suspect(number, client="14", **more):
    return line(number, client, verdict="suspect", norm=9.0, weight=0.0, **more)


def left_out(number, client="14", reason="4 NaN, first at bias[0]", **more):
    return line(number, client, verdict="left out", reason=reason, **more)


def silent(number, client="14", **more):
    return line(number, client, verdict="no answer", reason="none came in time", **more)


def written(path: Path, records) -> list[bytes]:
    """The lines of a new audit."""
    path.unlink(missing_ok=True)
    with Audit(path) as audit:
        audit.append(records)
    return path.read_bytes().splitlines(keepends=True)


def forge(path: Path, *bodies: bytes) -> None:
    """A whole chain of anything, as somebody makes it who knows how: each body is an object without its last brace."""
    lines, previous = [], BEGINNING
    for body in bodies:
        begun = body + b',"previous":"' + previous.encode() + b'"'
        previous = hashlib.sha256(begun).hexdigest()
        lines.append(begun + b',"hash":"' + previous.encode() + b'"}\n')
    path.write_bytes(b"".join(lines))


@pytest.fixture
def path(tmp_path) -> Path:
    return Path(tmp_path / "audit.jsonl")


def test_what_was_written_is_read(path):
    records = [used(1), left_out(1, "15"), line(1, None, void="krum needs at least 5 clients")]
    lines = written(path, records)
    assert read_audit(path) == records
    assert [json.loads(each)["previous"] for each in lines] == [
        BEGINNING,
        *(json.loads(each)["hash"] for each in lines[:-1]),
    ]
    begun = lines[1].partition(b',"hash"')[0]  # as anybody can check it
    assert json.loads(lines[1])["hash"] == hashlib.sha256(begun).hexdigest()


def test_every_changed_byte_shows_also_in_the_last_line(path):
    content = b"".join(written(path, [used(1), left_out(2), used(3)]))
    for at in range(len(content)):
        for other in {content[at] ^ 1, content[at] ^ 0x20, ord("\n"), ord(" ")} - {content[at]}:
            path.write_bytes(content[:at] + bytes([other]) + content[at + 1 :])
            with pytest.raises(AuditError, match=r"line [1-4] "):
                read_audit(path)
    path.write_bytes(content)
    assert len(read_audit(path)) == 3


@given(data=st.data(), count=st.integers(2, 6))
def test_every_edit_of_lines_shows(data, count):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "audit.jsonl")
        lines = written(path, [used(1)] * count)  # alike but for their places
        place = st.integers(0, count - 1)
        at, other = data.draw(place), data.draw(place)
        edited = list(lines)
        match data.draw(st.sampled_from(["remove", "repeat", "swap", "move", "insert", "join"])):
            case "remove":
                del edited[at]
            case "repeat":
                edited.insert(other, lines[at])
            case "swap":
                edited[at], edited[other] = lines[other], lines[at]
            case "move":
                edited.insert(other, edited.pop(at))
            case "insert":
                edited.insert(at, data.draw(st.binary(max_size=20)) + b"\n")
            case "join":
                edited[at] = lines[at][:-1]
        path.write_bytes(b"".join(edited))
        if edited == lines[: len(edited)]:  # nothing but the tail was cut off, which only a kept hash can tell
            assert len(read_audit(path)) == len(edited)
        else:
            with pytest.raises(AuditError, match=r"line [1-7] "):
                read_audit(path)


def test_the_error_says_where_and_of_which_kind(path):
    lines = written(path, [used(number) for number in range(1, 6)])
    for edited, message in (
        ([*lines[:2], lines[2].replace(b"used", b"usex"), *lines[3:]], "line 3 was changed after it was written"),
        ([*lines[:2], *lines[3:]], "line 3 does not follow from what stands before it"),
        ([*lines[:4], lines[4][:40]], "line 5 is unfinished"),
    ):
        path.write_bytes(b"".join(edited))
        with pytest.raises(AuditError, match=message):
            read_audit(path)


def test_a_kept_hash_shows_what_the_chain_alone_cannot(path):
    lines = written(path, [used(1), left_out(2), left_out(3)])
    kept = json.loads(lines[2])["hash"]
    assert verify(path, kept=kept).kept_line == 3
    assert verify(path, kept=json.loads(lines[0])["hash"]).kept_line == 1
    assert verify(path, kept=BEGINNING).kept_line == 0
    with Audit(path) as audit:
        audit.append([used(4)])
    assert verify(path, kept=kept).kept_line == 3
    path.write_bytes(lines[0])
    assert verify(path).findings.lines == 1
    with pytest.raises(AuditError, match="no line has the hash that was kept"):
        verify(path, kept=kept)
    written(path, [used(1), used(2), used(3)])
    assert verify(path).findings.lines == 3
    with pytest.raises(AuditError, match="no line has the hash that was kept"):
        verify(path, kept=kept)


def test_an_empty_audit_is_whole(path):
    with Audit(path) as audit:
        assert audit.head == BEGINNING
    found = verify(path)
    assert (found.findings.lines, found.head) == (0, BEGINNING)
    assert found.findings.summary() == "no round is written down yet"


@given(
    parts=st.lists(st.lists(st.sampled_from([used, suspect, left_out, silent]), max_size=3), max_size=4),
    killed=st.lists(st.binary(max_size=30).filter(lambda half: b"\n" not in half), min_size=4, max_size=4),
)
def test_opened_again_it_is_the_same_chain(parts, killed):
    records = [[kind(number) for kind in kinds] for number, kinds in enumerate(parts, 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "new", "audit.jsonl")
        for each, half in zip(records, killed, strict=False):
            with Audit(path) as audit:
                assert audit.append(each) == audit.head
            with path.open("ab") as file:  # of a process that was killed
                file.write(half)
        with Audit(path) as audit:
            head = audit.head
        once = Path(folder, "once")
        written(once, [record for each in records for record in each])
        assert path.read_bytes() == once.read_bytes() and head == verify(once).head


def test_a_broken_chain_is_refused_and_left_as_it_is(path):
    lines = written(path, [used(1), used(2), used(3)])
    broken = lines[0] + lines[2] + b'{"half'
    path.write_bytes(broken)
    for _ in range(2):  # nor does it stay locked
        with pytest.raises(AuditError, match="line 2 does not follow"):
            Audit(path)
    assert path.read_bytes() == broken


def test_one_writer_at_a_time(path):
    with Audit(path) as audit:
        audit.append([used(1)])
        with pytest.raises(FolderBusy, match="another server is writing this audit; wait for its end, or give"):
            Audit(path)
        audit.append([used(2)])
        assert len(read_audit(path)) == 2  # reading is free
    Audit(path).close()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "audit.jsonl"):
        with pytest.raises(AuditError, match=r"cannot be written \(.*directory|cannot be written \(File exists"):
            Audit(place)


def test_a_full_disk_leaves_no_half_line(path, monkeypatch):
    lines = written(path, [used(1)])
    with Audit(path) as audit:
        real, written_so_far = audit._file, []

        class Full:
            def write(self, content):
                written_so_far.append(real.write(bytes(content[:50])))
                if len(written_so_far) > 2:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return written_so_far[-1]

            def __getattr__(self, name):
                return getattr(real, name)

        monkeypatch.setattr(audit, "_file", Full())
        with pytest.raises(AuditError, match="cannot be written"):
            audit.append([used(2), used(3)])
        assert path.read_bytes() == lines[0] and len(written_so_far) == 3
        monkeypatch.setattr(audit, "_file", real)
        audit.append([used(2), used(3)])
    assert [record["round"] for record in read_audit(path)] == [1, 2, 3]


def test_all_lines_or_none(path):
    with Audit(path) as audit:
        with pytest.raises(TypeError):
            audit.append([used(1), used(2, strange=object())])
        assert path.read_bytes() == b"" and audit.head == BEGINNING


def test_numbers_that_json_lacks_and_names_that_are_ours(path):
    with Audit(path) as audit:
        audit.append([used(1) | {"norm": float("inf"), "previous": 7.0, "hash": 8.0}])
    (record,) = read_audit(path)
    assert record["norm"] is None and not record.keys() & {"previous", "hash"}
    Audit(path).close()


def test_a_terminal_shows_the_file_harmlessly(path):
    text = "\x1b[2J\x9b31m \u202e </script> \ud800 ü"
    written(path, [left_out(1, reason=text)])
    assert path.read_bytes().isascii() and b"\x1b" not in path.read_bytes()
    assert read_audit(path)[0]["reason"] == text


def test_cut_back(path):
    with Audit(path) as audit:
        heads = [audit.head, *(audit.append([used(number)]) for number in range(1, 5))]
        audit.cut_back(heads[4], 5, 5)
        assert len(read_audit(path)) == 4
        before = path.read_bytes()
        with pytest.raises(AuditError, match="goes on with rounds of another training"):
            audit.cut_back(heads[2], 3, 3)
        assert path.read_bytes() == before
        audit.cut_back(heads[3], 4, 4)
        assert audit.head == heads[3] and len(read_audit(path)) == 3
        assert audit.append([used(4)]) == heads[4]  # the same round gives the same line
        audit.cut_back(heads[3], 4, 4)
        before = path.read_bytes()
        with pytest.raises(AuditError, match="the line it goes on from is missing"):
            audit.cut_back(heads[4], 5, 5)
        assert path.read_bytes() == before
    path.unlink()
    with Audit(path) as audit:
        audit.append([used(1), used(1, "15")])
        audit.cut_back(BEGINNING, 1, 1)
        assert path.read_bytes() == b""


def test_cut_back_to_the_end_of_another_training(path):
    """A second training in the same audit, killed in its first round."""
    with Audit(path) as audit:
        end = [audit.append([used(number)]) for number in (1, 2, 3)][-1]
        audit.append([used(1, run=124)])
        audit.cut_back(end, 1, 1)
        assert audit.head == end and audit.lines == 3 and [each["round"] for each in read_audit(path)] == [1, 2, 3]


def test_cut_back_over_several_rounds(path):
    with Audit(path) as audit:
        heads = [audit.head, *(audit.append([used(number), used(number, "15")]) for number in range(1, 6))]
        before = path.read_bytes()
        for first, last in ((2, 4), (3, 5), (4, 5), (5, 2)):  # a round is missing at one end or at both
            with pytest.raises(AuditError, match="goes on with rounds of another training"):
                audit.cut_back(heads[1], first, last)
        assert path.read_bytes() == before and audit.head == heads[5]
        audit.cut_back(heads[1], 2, 9)  # of those that were to come, not all had been played
        assert audit.head == heads[1] and [record["round"] for record in read_audit(path)] == [1, 1]


@pytest.mark.parametrize(
    "body", [b'{"client":"1"', b'{"round":"2"', b'{"round":true', b'{"round":2.0', b"[", b'{"\xff":2']
)
def test_lines_of_no_round_are_not_cut_off(path, body):
    forge(path, b'{"round":1,"client":"1"', body)
    first, before = json.loads(path.read_bytes().splitlines()[0])["hash"], path.read_bytes()
    with Audit(path) as audit, pytest.raises(AuditError, match="goes on with rounds of another training"):
        audit.cut_back(first, 1, 2)
    assert path.read_bytes() == before


def test_opening_reads_line_by_line(path):
    with Audit(path) as audit:
        for number in range(200):
            audit.append([used(number, str(client), note="x" * 200) for client in range(50)])
    size = path.stat().st_size
    tracemalloc.start()
    Audit(path).close()
    opened = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 4e6 and opened < size / 20


HOSTILE = {
    b'{"round":1,"client":"1","deep":' + b"[" * 100_000 + b"]" * 100_000: "line 1 is not JSON",
    b'{"round":1,"client":"1","weight":NaN': "line 1 is not JSON",
    b'{"round":1,"client":"1","weight":-Infinity': "line 1 is not JSON",
    b'{"round":1,"client":"1","weight":1e999': "weight must be a number or null",
    b'{"round":1,"client":"1","norm":' + b"9" * 400: "norm must be a number or null",
    b'{"round":1' + b"0" * 5000 + b',"client":"1"': "line 1 is not JSON",
    b'{"round":1' + b"0" * 50 + b',"client":"1"': "round must be a whole number",
    b'{"round":-1,"client":"1"': "round must be a whole number",
    b'{"round":1.5,"client":"1"': "round must be a whole number",
    b'{"round":true,"client":"1"': "round must be a whole number",
    b'{"round":"1","client":"1"': "round must be a whole number",
    b'{"round":[1],"client":"1"': "round must be a whole number",
    b'{"client":"1"': "round is missing",
    b'{"round":1': "client is missing",
    b'{"round":1,"client":1': "client must be a text or null",
    b'{"round":1,"client":{"a":1}': "client must be a text or null",
    b'{"round":1,"client":"1","run":"x"': "run must be a whole number",
    b'{"round":1,"client":"1","time":7': "time must be a text",
    b'{"round":1,"client":"1"': "verdict is missing",
    b'{"round":1,"client":"1","verdict":"fine"': "verdict must be null or one of used, suspect, left out",
    b'{"round":1,"client":"1","verdict":true': "verdict must be null or one of used",
    b'{"round":1,"client":"1","verdict":["used"]': "verdict must be null or one of used",
    b'{"round":1,"node":1': "client must be a text or null",  # as the version before wrote it
    b'{"round":1,"node":{"a":1}': "client must be a text or null",
    b'{"round":1,"node":"1","admitted":"yes"': "admitted must be true or false",
    b'{"round":1,"node":"1","admitted":true,"suspect":"no"': "suspect must be true or false",
    b'{"round":1,"node":"1","admitted":false,"reason":["x"]': "reason must be a text",
    b'{"round":1,"client":"1","reason":["x"]': "reason must be a text",
    b'{"round":1,"client":null,"void":{}': "void must be a text",
    b'{"round":1,"client":"\xff\xfe"': "line 1 is not JSON",
    b'[{"round":1': "line 1 is not JSON",
    b"{": "line 1 is not JSON",
    b"": "line 1 is not JSON",
}


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_somebody_wrote_anew_is_one_line(path, body):
    forge(path, body)
    with pytest.raises(AuditError, match=HOSTILE[body]) as problem:
        verify(path)
    assert "\n" not in str(problem.value)


def test_of_two_keys_the_last_counts(path):
    forge(path, b'{"round":1,"client":"1","verdict":"left out","verdict":"used"')
    assert read_audit(path) == [{"round": 1, "client": "1", "verdict": "used"}]


@given(content=st.binary(max_size=300))
def test_any_bytes_are_an_audit_error(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "audit.jsonl")
        path.write_bytes(content)
        if content:
            with pytest.raises(AuditError):
                read_audit(path)


def test_strange_times_and_huge_weights_end_nothing(path):
    strange = [b'"\\ud800"', b'"0001-01-01T00:00:00+14:00"', b'"9999-12-31T23:59:59-14:00"', b'"2026-13-99"', b'""']
    body = b'{"round":%d,"client":"1","verdict":"left out","weight":1.7e308,"time":%b'
    forge(path, *(body % each for each in enumerate(strange)))
    findings = verify(path).findings
    since = findings.clients[0].since
    assert findings.clients[0].mean_weight is None
    assert since is not None and findings.words(since) == ["round 0"]
    assert findings.summary() == "1 client over 5 rounds: 1 suspicious"


def test_a_file_that_is_not_there(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="cannot be read"):
            read_audit(place)


KINDS = {"u": used, "s": suspect, "x": left_out, "-": silent}


def client_of(course: str):
    """What is found of a client that did this, a letter for each round."""
    (found,) = conduct(KINDS[kind](number) for number, kind in enumerate(course, 1))
    return found


@pytest.mark.parametrize(
    ("course", "since"),
    {
        "sss": 1,
        "xxxxx": 1,
        "xsx": 1,
        "u" * 100 + "x" * 20: 101,  # honest for long, then not
        "u" * 100 + "xxx": 101,
        "uusuu" + "u" * 20 + "ssusssu": 26,
        "uxxx---": 2,  # who falls silent is not cleared
        "x-x-x": 1,
        "xxxxxuu": 1,
    }.items(),
)
def test_who_does_more_harm_than_good_since_some_round_is_suspicious(course, since):
    found = client_of(course)
    assert found.suspicious and found.since.round == since


@pytest.mark.parametrize(
    "course",
    [
        "u",
        "uu-uu",
        "-----",  # absent, which is not malicious
        "-" * 50 + "u",
        "x",  # once may be an accident
        "uxu" * 30,
        "uuxxuuuu",
        "xxxxxuuuuu",  # mended for as long as it was broken
        "xxx" + "u" * 50,
    ],
)
def test_who_does_not_is_not_suspicious(course):
    found = client_of(course)
    assert not found.suspicious and found.since is None


@given(course=st.text("usx-", min_size=1, max_size=30))
def test_the_count_is_what_the_docstring_says(course):
    worth = {"u": -1, "s": 1, "x": 1, "-": 0}
    surplus = {start: sum(worth[kind] for kind in course[start:]) for start in range(len(course))}
    most = max(surplus.values())
    found = client_of(course)
    assert found.suspicious == (most >= 3)
    if found.suspicious:  # the shortest of the times in which it was at its worst
        starts = [start for start in surplus if surplus[start] == most and worth[course[start]]]
        assert found.since.round == max(starts) + 1
    assert (found.asked, found.no_answer) == (len(course), course.count("-"))
    assert (found.left_out, found.suspect) == (course.count("x"), course.count("s"))


def test_weights_and_reasons():
    found = client_of("uuxsx-")
    assert found.mean_weight == pytest.approx(0.5 / 5) and found.last_reason == "4 NaN, first at bias[0]"
    assert client_of("xx").mean_weight is None and client_of("u-").last_reason is None


def test_the_suspicious_come_first_then_the_worst():
    courses = {"20": "uuu", "9": "uuu", "3": "uuuxxx", "100": "xxuuuu", "5": "---"}
    records = [KINDS[kind](k, client) for client, course in courses.items() for k, kind in enumerate(course)]
    assert [found.client for found in conduct(records)] == ["3", "100", "5", "9", "20"]


def findings_of(*records) -> Findings:
    findings = Findings(most_rounds=4)
    for record in records:
        findings.add(record)
    return findings


def test_a_resumed_run_goes_on():
    findings = findings_of(*(left_out(number, run=1 if number < 3 else 2) for number in (1, 2, 3, 4)))
    since = findings.clients[0].since
    assert since is not None and findings.words(since) == ["round 1", "2026-11-16 09:01 UTC"]
    assert [each.when.round for each in findings.latest] == [1, 2, 3, 4] and not findings.repeats
    assert findings.summary() == (
        "1 client over 4 rounds of 2 runs (2026-11-16 09:01 to 2026-11-16 09:04 UTC): 1 suspicious"
    )


def test_a_new_run_begins_again():
    findings = findings_of(used(1, run=1), used(2, run=1), *(suspect(number, run=2) for number in (1, 2, 3)))
    since = findings.clients[0].since
    assert findings.repeats and findings.rounds == 5
    assert since is not None and findings.words(since) == ["run 2", "round 1", "2026-11-16 09:01 UTC"]
    assert [each.when[:2] for each in findings.latest] == [(1, 2), (2, 1), (2, 2), (2, 3)]


def test_a_round_that_kept_its_model():
    findings = findings_of(used(1), left_out(2), line(2, None, void="krum needs at least 5 clients"), used(3))
    assert [each.void for each in findings.latest] == [None, "krum needs at least 5 clients", None]
    assert findings.voids == 1 and len(findings.clients) == 1
    assert findings.summary().endswith("none suspicious; 1 round kept the model it began with")


def void(number, client="14"):
    return line(number, client, verdict="round void")


def test_every_round_that_kept_its_model_is_counted():
    why = "krum needs at least 5 clients"
    findings = findings_of(void(1), line(1, None, void=why), void(2), line(2, None, void=why), used(3, "15"))
    assert findings.voids == 2
    by_client = {each.client: each for each in findings.clients}
    assert by_client["14"].void == 2 and by_client["14"].standing == "not judged" and by_client["15"].void == 0


def test_the_share_of_bad_answers():
    records = [left_out(1), left_out(1, "15"), used(2), used(3), silent(4), silent(1, "16")]
    shares = {each.client: each.bad_share for each in findings_of(*records).clients}
    assert shares == {"15": 1.0, "14": pytest.approx(1 / 3), "16": 0.0}
    assert [each.client for each in findings_of(*records).clients] == ["15", "14", "16"]


def test_what_each_client_did_in_each_round():
    findings = findings_of(used(1, "1"), silent(1, "2"), suspect(2, "1"), left_out(2, "3"))
    verdicts = [{client: act.verdict.kind for client, act in each.clients.items()} for each in findings.latest]
    assert verdicts == [{"1": "used", "2": "no answer"}, {"1": "suspect", "3": "left out"}]


@pytest.mark.parametrize(
    ("course", "standing"),
    [("uuu", "fine"), ("sss", "suspicious"), ("us", "doubtful"), ("su", "fine"), ("---", "never answered")],
)
def test_the_standing_in_a_word(course, standing):
    findings = findings_of(*(KINDS[letter](number) for number, letter in enumerate(course, 1)))
    assert findings.clients[0].standing == standing
    assert (", 1 doubtful" in findings.summary()) == (standing == "doubtful")


def before_this(number, node="14", *, run=123, **more):
    """A line as the version before wrote it."""
    return {"time": f"2026-11-16T09:{number % 60:02}:00+00:00", "run": run, "round": number, "node": node, **more}


BEFORE_THIS: list[tuple[Kind, dict[str, Any]]] = [
    ("used", {"admitted": True, "suspect": False, "norm": 1.2, "weight": 0.25}),
    (
        "suspect",
        {"admitted": True, "suspect": True, "norm": 9.0, "weight": 0.0, "reason": "weight 0, where the median"},
    ),
    ("suspect", {"client": "14", "admitted": True, "suspect": True, "norm": 9.0, "weight": 0.0, "reason": "norm 9"}),
    ("left out", {"admitted": False, "reason": "4 NaN, first at bias[0]"}),
    ("left out", {"admitted": False, "reason": "answered with error 2: no answer"}),
    ("left out", {"admitted": False}),
    ("no answer", {"admitted": False, "reason": "no answer in time"}),
    ("no answer", {"admitted": False, "reason": "no answer: Node unavailable"}),
    ("no answer", {"admitted": False, "reason": "no answer that can be decoded (IndexError: list index out of range)"}),
    ("round void", {"admitted": True}),
]


@pytest.mark.parametrize(("verdict", "fields"), BEFORE_THIS)
def test_a_line_of_the_version_before_has_a_verdict(path, verdict, fields):
    written(path, [before_this(1, **fields)])
    (record,) = read_audit(path)
    told = {name: value for name, value in fields.items() if name not in ("admitted", "suspect")}
    assert record == {**line(1), **told, "verdict": verdict}
    ((client, act),) = verify(path).findings.latest[0].clients.items()
    assert (client, act.verdict) == ("14", Verdict(verdict, fields.get("reason")))
    assert (act.norm, act.weight) == (fields.get("norm"), fields.get("weight"))


def test_a_void_round_of_the_version_before(path):
    why = "at least 4 answers needed, 1 usable of 6 asked"
    written(path, [before_this(2, admitted=True), before_this(2, None, void=why)])
    assert read_audit(path) == [line(2, verdict="round void"), line(2, None, void=why)]
    findings = verify(path).findings
    assert findings.voids == 1 and findings.latest[0].void == why and findings.rounds == 1
    (client,) = findings.clients
    assert (client.asked, client.suspect, client.left_out, client.no_answer) == (1, 0, 0, 0)


@given(course=st.text("usx-v", min_size=1, max_size=20))
def test_the_version_before_is_judged_as_this_one(course):
    then: dict[str, dict[str, Any]] = {
        "u": {"admitted": True, "suspect": False, "norm": 1.2, "weight": 0.25},
        "s": {"admitted": True, "suspect": True, "norm": 9.0, "weight": 0.0},
        "x": {"admitted": False, "reason": "4 NaN, first at bias[0]"},
        "-": {"admitted": False, "reason": "no answer in time"},
        "v": {"admitted": True},
    }
    now = {**KINDS, "v": lambda number: line(number, verdict="round void")}
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        written(old, [before_this(number, **then[kind]) for number, kind in enumerate(course)])
        written(new, [now[kind](number) for number, kind in enumerate(course)])
        assert conduct(read_audit(old)) == conduct(read_audit(new))


def test_an_audit_of_the_version_before_is_whole_and_goes_on(path):
    old = written(path, [before_this(number, **fields) for number, (_, fields) in enumerate(BEFORE_THIS)])
    with Audit(path) as audit:
        audit.append([used(20), left_out(21)])
    assert path.read_bytes().startswith(b"".join(old))
    verdicts = [record["verdict"] for record in read_audit(path)]
    assert verdicts == [*(verdict for verdict, _ in BEFORE_THIS), "used", "left out"]
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"suspect":false', b'"suspect":true ', 1))
    with pytest.raises(AuditError, match="line 1 was changed after it was written"):
        read_audit(path)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = Path(tmp_path_factory.mktemp("run") / "here")
    simulate(Scenario(rounds=2, clients=4, byzantine=1, train_images=200), folder=folder)
    return folder


def test_the_folder_of_a_run_holds_an_audit(run_folder):
    file = run_folder / "clients.jsonl"
    records = read_audit(file)
    assert [(record["round"], record["client"]) for record in records] == [(n, c) for n in (1, 2) for c in "0123"]
    assert [record["byzantine"] for record in records] == [False, False, False, True] * 2
    assert records == read_history(run_folder).audit
    findings = verify(file).findings
    assert (findings.lines, findings.rounds, findings.voids) == (8, 2, 0)
    assert sorted(client.client for client in findings.clients) == ["0", "1", "2", "3"]
    assert {client.asked for client in findings.clients} == {2}


def test_every_changed_byte_of_a_run_shows(run_folder, tmp_path):
    content = (run_folder / "clients.jsonl").read_bytes()
    changed = tmp_path / "clients.jsonl"
    for at in range(len(content)):
        changed.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(AuditError, match=r"line [1-9] "):
            verify(changed)


# --- where a chain begins, and where it goes on --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "chained"),
    [
        (b"", True), (b'{"round":1,"previous":"0","hash":"1"}\n', True), (b'{"round":1,"previous":"0"}\n', False),
        (b'{"round":1,"hash":"1"}\n', False), (b'{"round":1}\n', False),
    ],
)  # fmt: skip
def test_a_first_line_that_carries_both_hashes_is_of_a_chain(path, first, chained):
    assert is_chained(path), "what is not there is a chain of no lines"
    path.write_bytes(first)
    assert is_chained(path) == chained


def test_what_is_no_audit_is_told_so_at_its_first_line_only(path):
    lines = written(path, [used(1), used(2)])
    path.write_bytes(b"mine\n")
    with pytest.raises(AuditError, match="line 1 was changed after it was written, or this is not an audit"):
        read_audit(path)
    path.write_bytes(lines[0] + b"mine\n")
    with pytest.raises(AuditError, match=r"line 2 was changed after it was written$"):
        read_audit(path)


def test_another_round_than_was_kept_is_not_gone_on_from(path):
    with Audit(path) as audit:
        heads = [audit.append([used(number)]) for number in (1, 2)]
        before = path.read_bytes()
        with pytest.raises(AuditError, match="round 3 was kept, but the line to go on from is of round 2"):
            audit.cut_back(heads[1], 4, 4)
        assert path.read_bytes() == before
        audit.cut_back(heads[1], 3, 3)
        audit.cut_back(heads[0], 2, 2)
    assert [record["round"] for record in read_audit(path)] == [1]


def test_a_failed_line_after_others_costs_none_of_them(path, monkeypatch):
    with Audit(path) as audit:
        for number in (1, 2, 3):
            audit.append([used(number)])
        before = path.read_bytes()
        with monkeypatch.context() as patch, pytest.raises(AuditError, match="cannot be written"):
            patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, os.strerror(errno.EIO))))
            audit.append([used(4)])
        assert path.read_bytes() == before
        audit.append([used(4)])
    assert [record["round"] for record in read_audit(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ("weight", -3, True), ("weight", -(2**64), False), ("weight", 2**64, False), ("weight", 2**64 - 1, True),
        ("run", -3, False), ("run", 0, True), ("run", 2**64 - 1, True), ("run", 2**64, False), ("run", True, False),
    ],
)  # fmt: skip
def test_whole_numbers_are_those_that_64_bits_hold(path, field, value, fits):
    forge(path, json.dumps(used(1) | {field: value}).encode()[:-1])
    if fits:
        assert read_audit(path)[0][field] == value
    else:
        with pytest.raises(AuditError, match=field):
            read_audit(path)


def test_an_unfinished_line_is_an_error_unless_it_is_said_that_a_server_may_be_writing(path):
    written(path, [used(1), used(2)])
    with path.open("ab") as file:
        file.write(b'{"round":3,"cl')
    with pytest.raises(AuditError, match="line 3 is unfinished"):
        verify(path)
    assert verify(path, strict=False).findings.clients[0].asked == 2


def test_the_last_reason_that_was_given_stays():
    for later in (used(2), suspect(2)):
        (client,) = conduct([left_out(1, reason="4 NaN"), later])
        assert client.last_reason == "4 NaN"
    (client,) = conduct([left_out(1, reason="4 NaN"), left_out(2, reason="5 NaN"), used(3)])
    assert client.last_reason == "5 NaN"
