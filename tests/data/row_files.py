"""Files of rows, in the formats that sources read."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather, parquet


def write_rows(path: Path, rows: list[dict[str, Any]], group: int = 300) -> str:
    """Write rows in the format of the suffix.

    Arguments:
        group: rows in a group of Parquet or a batch of Arrow.

    Returns:
        the path, as sections have it.
    """
    suffix = path.name.partition(".")[2]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if suffix == "jsonl":
        path.write_text(lines)
    elif suffix == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif suffix == "json":
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    elif suffix == "csv":  # whose cells are texts
        with path.open("w", newline="") as file:
            cells = [[v if isinstance(v, str) else json.dumps(v) for v in r.values()] for r in rows]
            csv.writer(file).writerows([list(rows[0]), *cells])
    elif suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    elif suffix == "feather":
        feather.write_feather(pa.Table.from_pylist(rows), str(path))
    else:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
    return str(path)
