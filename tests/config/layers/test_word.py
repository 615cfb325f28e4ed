from setpoint.config.layers.flags import Word, read_flags

from ..sample import Job


def test_a_word_knows_its_place() -> None:
    word = Word("--seed=1", "args.txt:3")
    assert (word, word.place) == ("--seed=1", "args.txt:3")
    assert [flag.label for flag in read_flags(Job, [word, "--seed", "2"])] == [
        "--seed (args.txt:3)",
        "--seed",
    ]
