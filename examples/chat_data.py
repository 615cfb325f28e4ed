"""Write chats.jsonl: a thousand conversations about small sums."""

import json
import random

draw = random.Random(0)
with open("chats.jsonl", "w") as file:
    for _ in range(1000):
        a, b = draw.randint(0, 9), draw.randint(0, 9)
        messages = [
            {"role": "user", "content": f"How much is {a} and {b}?"},
            {"role": "assistant", "content": f"{a} and {b} is {a + b}."},
        ]
        print(json.dumps({"messages": messages}), file=file)
