"""Words that have broken programs, and some that mean something to ours."""

# fmt: off
NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "64", "1000", "0.5", "-0.0", "1e-3", "1e3", "1e18", "1e308",
    "1e999", "-1e308", "5e-324", "nan", "inf", "-inf", ".inf", ".nan", "0x10", "0o7", "0b1",
    "1_000", "1_0", "1_0.5", "\uff19", "\u0663", "2147483648", "9223372036854775808",
    "1000000000000000000000000000000", '1' + '0' * 309, '9' * 5000, "1e", "1.5.2", "--1", "+3",
    " 3 ", "3e0", "1/2", "1e-400",
)
QUANTITIES = (
    "10 steps", "1e18 steps", "1e308 steps", "0 steps", "-1 steps", "nan steps", "0.5 epochs",
    "1e308 epochs", "3 epochs", "10 min", "1e300 h", "1e9 tokens", "1e308 tokens", "1 parsec",
    "16 MiB", "1e30 GiB", "-1 B", "0.1 B", "1 step", "1e17", "99999999999999999999 steps",
    "5e-324 s", "1e-9 epochs", "1 1 steps", "steps", "1e18 tokens", "2e15 s",
)
REFERENCES = (
    "${whole}", "${part.size}", '${part.size * 2 + 1}', "${missing}", "${a.b.c}", "${", "${}",
    "${whole", "$${whole}", "${9 ** 9 ** 9}", "${2 ** 100000}", "${whole ** whole}", "${1/0}",
    "${parts[0].size}", "${parts[99999999999999999999].size}", "${free}", "${part}", "${shape}",
    "${'a' * 10 ** 9}", '${[1] * 10 ** 9}', "${text}", "${number // 0.0}",
    '${' + '-' * 301 + '1}', '${' + '(' * 300 + '1' + ')' * 300 + '}',
    "${" + "+".join("1" * 2000) + "}", '${1e308 * 10}', "${__import__('os')}",
    "${whole.__class__}", '${model.dim * 4}', "${seed}", "${a\x00b}", "x${whole}y",
    "${whole}${whole}", "${\ud800}", "${many}", "${1 << 10 ** 9}", "${10 ** 5000}",
    "${7 // 2 ** -1}", "${0 ** -1}", "${(-8) ** 0.5}", "${1e300 ** 2}", "${maybe}", "${table.a}",
)
TEXTS = (
    "", " ", "a", "b", "null", "~", "true", "false", "True", "yes", "\x00", "a\x00b", "\ud800",
    "\udcff", "\xe9", "\u65e5\u672c", "\u202e", "\x1b[31m", "\n", "\r\n", "\t", "\x85", "\u2028",
    "\ufeff", "\U0010ffff", 'a' * 300, 'a' * 5000, "/", "/dev/null", "..", ".", "~", "~nobody/x",
    "~\x00", "-", "--", "=", "#", "a.b", "__class__", "_x", "-1", "@", "@tiny", "@a.txt", "@\x00",
    "{", "}", "[", "]", ",", ":", "::", "{a: 1}", "{a = 1, b: [2]}", "[1, 2]", "[a, {b: 1}]",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "{a: " * 40,
    '[' * 5000, '"', "'", '"a"', "'a", "\\", "env:X", "env:A\x00B", "file:/x", "file:a\x00b",
    "hunter2", "a=b", "math.sqrt", "math:sqrt", "no.such.module", "no:such", "a\x00b.c",
    "\ud800.x", ".x", "x.", "a..b", "float32", "bfloat16", "float8", "RED", "circle", "square",
    "import", "adamw", "cosine", "auto", "sk-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://a:b@c", "a.toml", "deep.yaml", "nul\x00.toml", "\ud800.toml", "x.json", "tiny",
    "smoke", "tiny(", "tiny()", "smoke(steps=1e308)", "smoke(steps=\x00)", "nosuch:tiny", "\x00:x",
    "{type: circle}", "{type: square, parts: [{size: 3}]}", "{extends: part.toml}",
    "{extends: [a\x00b]}", "[{extends: part.toml}]",
    "{type = import, target = collections.OrderedDict, a = 1}", "uniform(1,2)", "choice(1,2)",
    "log_uniform(0, 1)", "range(0, 1e308, 1)", "int(1, 10)", "a,b", "1,2,3", ",", "x,,y",
    "{type: import, target: math.sqrt}", "{type: import, target: a\x00b.c}",
    "{type: import, target: 1}",
)
DRAWS = (
    "uniform(1, 2)", "uniform(2, 1)", "uniform(0, 1e308)", "uniform(-1e308, 1e308)", "int(1, 3)",
    "int(1, 1e30)", "log_uniform(0, 1)", "log_uniform(1e-300, 1e300)", "choice(1, 2)", "choice()",
    "range(0, 1e308, 1)", "uniform(nan, 1)", "uniform(1", "normal(0, 1)", "int(0.5, 1)",
    "uniform()",
    "int(1, 10, step=1e-300)", "uniform(0, 1, step=5e-324)", "log_int(1, 1e18)", "int(-1e18, 1e18)",
)
EDITS = (
    "append", "extend", "insert.0", "insert.-1", "0", "0", "-1", "a", "one", "first",
)
KEYS = (
    "append", "extend", "insert", "remove", "0", "1", "-1", "5", "99999999999999999999999",
    "type", "extends", "name", "a", "one", "b c", "x.y", "", " ", "\x00", "\ud800", "\xe9", "-",
    "_x", "__class__", "first", "insert.0", "insert.-99999999999999999999", "insert.x", "0.0",
    "\uff19", "1e3", "circle", "target", "tag", "sweep", "silence", "lr", "size", "setpoint",
    "$schema", 'a' * 300, "items",
)
SOURCES = (
    "part.toml", "loop.toml", "missing.toml", "a\x00b.toml", "\ud800.toml", 'a' * 5000 + '.toml',
    "tiny", "nosuch", "tiny(x=1)", "tiny(\x00)", ".", "..", "/", "", " ", "math:sqrt", "no:such",
    "a\x00b:c", "\ud800:c", ":", "x:", ":y", "json:nosuch", "nosuch:tiny", "\x00", "~\x00/x.toml",
    "dir", "~nobody/x.toml", "dir.toml", "bin.json", "deep.yaml", "@tiny", "-", "--x", "x/y",
    'e' * 300,
)
# fmt: on
FILES = {
    "part.toml": "size = 3\n",
    "loop.toml": 'extends = "loop.toml"\n',
    "deep.yaml": "free: " + "{a: " * 40 + "1" + "}" * 40 + "\n",
    "circle.json": '{"type": "circle", "part": {"extends": "part.toml"}}\n',
    "old.toml": "setpoint = {schema = 1}\nseed = 3\n",
    "plain.toml": 'extends = "tiny"\nseed = 3\n',
    "exp.toml": 'extends = "tiny"\nseed = 3\n[sweep]\ngrid = {seed = [1, 2]}\n',
}
