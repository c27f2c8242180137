"""Talks to a model server as programs with the `openai` package do, and prints what it understood as JSON."""

import json
import sys

import openai

MESSAGES = [{"role": "user", "content": "Wie groß ist 1 + 1?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "description": "Run code.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    }
]


def answer(message, finish, usage):
    calls = message.tool_calls or []
    return {
        "content": message.content,
        "calls": [[call.function.name, call.function.arguments] for call in calls],
        "finish": finish,
        "counted": usage is not None and usage.total_tokens > 0,
    }


def whole(client):
    completion = client.chat.completions.create(model="test", messages=MESSAGES, tools=TOOLS)
    choice = completion.choices[0]
    return answer(choice.message, choice.finish_reason, completion.usage)


def streamed(client):
    """The package's own assembler puts the chunks together."""
    options = {"include_usage": True}
    with client.chat.completions.stream(model="test", messages=MESSAGES, tools=TOOLS, stream_options=options) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    choice = completion.choices[0]
    return answer(choice.message, choice.finish_reason, completion.usage)


def error(client):
    try:
        whole(client)
    except openai.APIStatusError as failure:
        return [type(failure).__name__, failure.status_code]
    return None


def cut(client):
    try:
        for _ in client.chat.completions.create(model="test", messages=MESSAGES, stream=True):
            pass
    except Exception as failure:  # which one it is, is the package's business
        return type(failure).__name__
    return None


def main():
    # Loopback is no matter for a proxy that the machine may have.
    http_client = openai.DefaultHttpxClient(trust_env=False)
    patient = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=2, http_client=http_client)
    once = patient.with_options(max_retries=0)
    report = {
        "whole": whole(patient),
        "whole_calls": whole(patient),
        "streamed": streamed(patient),
        "streamed_calls": streamed(patient),
        "after_429": whole(patient),
        "server_error": error(once),
        "cut": cut(once),
        "wrong_key": error(once.with_options(api_key="wrong")),
    }
    print(json.dumps(report))


main()
