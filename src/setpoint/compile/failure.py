"""What PyTorch's compiler raises, as an error in words."""

from __future__ import annotations

import re

from setpoint.config import RunError

MODULES = frozenset({"torch._dynamo.exc", "torch._inductor.exc"})


def in_words(error: Exception) -> RunError | None:
    """Say what the compiler could not do.

    Returns:
        an error that says what to change; None for errors that are not the compiler's.
    """
    # By name: where nothing has been compiled its modules need not be there.
    if not any(cls.__module__ in MODULES for cls in type(error).__mro__):
        return None
    return RunError(
        f"torch.compile: {reason_in(str(error))}\n"
        f"Change what it names, or set compile = null; if compile.fullgraph is true, false lets "
        f"such a part run as it is written, and compile.backend = aot_eager shows whether it is "
        f"the backend that fails"
    )


def reason_in(text: str) -> str:
    """Take the reason out of what PyTorch's compiler says.

    Arguments:
        text: paragraphs with explanations, hints, a place in the code and advice on debugging.

    Returns:
        one line, without addresses in memory; the last place in the code that is named follows.
    """
    head = [line.strip() for line in text.strip().split("\n\n")[0].splitlines()]
    said = [line.removeprefix("Explanation: ") for line in head if not line.startswith("Hint:")]
    # Behind a number sign PyTorch quotes the source, which the place names as well.
    words = " ".join(" ".join(said).partition(" # ")[0].split())
    words = re.sub(r" at 0x[0-9a-f]+", "", words)
    places = re.findall(r'File "(.+?)", line (\d+)', text)
    return f"{words} ({places[-1][0]}:{places[-1][1]})" if places else words
