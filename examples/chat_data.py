"""Write chats.jsonl: a thousand conversations about small sums."""

import json
import random

pairs = [(a, b) for a in range(40) for b in range(40)]
with open("chats.jsonl", "w") as file:
    for a, b in random.Random(0).sample(pairs, 1000):
        messages = [
            {"role": "user", "content": f"How much is {a} and {b}?"},
            {"role": "assistant", "content": f"{a} and {b} is {a + b}."},
        ]
        print(json.dumps({"messages": messages}), file=file)
