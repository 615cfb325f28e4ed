"""Named jobs and modifiers; importing this package registers them.

The modules of published models are imported when one of their presets is requested.
"""

from setpoint.config.layers.presets import presets
from setpoint.presets import modifiers as modifiers
from setpoint.presets import tiny as tiny

presets.expect("setpoint.presets.answers", "answers")
presets.expect("setpoint.presets.deepseek", "deepseek-v3", "deepseek-tiny")
presets.expect("setpoint.presets.gemma3", "gemma3-tiny")
presets.expect("setpoint.presets.gpt2", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-tiny")
presets.expect("setpoint.presets.gpt_oss", "gpt-oss-20b", "gpt-oss-120b")
presets.expect(
    "setpoint.presets.llama3", "llama3-1b", "llama3-3b", "llama3-8b", "llama3-70b", "llama3-tiny"
)
presets.expect("setpoint.presets.mistral", "mistral-tiny")
presets.expect(
    "setpoint.presets.qwen3",
    "qwen3-0-6b",
    "qwen3-1-7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-tiny",
    "qwen3-30b-a3b",
    "qwen3-moe-tiny",
)
