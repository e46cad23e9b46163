"""An Arrow file that is mapped, and Parquet read by DuckDB: plain files to tierfs."""
from same import compare

# snippet
import duckdb
import pyarrow


def load(folder):
    with pyarrow.memory_map(f"{folder}/table.arrow") as source:
        table = pyarrow.ipc.open_file(source).read_all()
    rows = duckdb.sql(f"select k % 10, sum(v) from '{folder}/table.parquet' group by all order by all").fetchall()
    return [table.to_pydict(), rows]
# end


if __name__ == "__main__":
    compare(load)
