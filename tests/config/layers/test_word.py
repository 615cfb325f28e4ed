from setpoint.config.layers.flags import Word, label_of


def test_a_word_knows_its_place() -> None:
    word = Word("--a.b=1", "args.txt:3")
    assert (word, word.place) == ("--a.b=1", "args.txt:3")
    assert label_of(word, "--a.b") == "--a.b (args.txt:3)"
    assert label_of("--a.b=1", "--a.b") == "--a.b"
