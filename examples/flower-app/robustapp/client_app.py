"""What a site does: learn from its own images, and answer with the new weights."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from robustapp import byzantine, task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    site, sites = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    send = byzantine.deed_of(site, context)
    before = message.content.array_records["arrays"].to_torch_state_dict()
    model = task.make_model()
    model.load_state_dict(before)
    images, labels = task.load_training(site, sites)
    loss = task.train(model, images, labels)
    arrays = ArrayRecord(send(dict(before), model.state_dict()))
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
