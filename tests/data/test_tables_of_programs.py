"""Tables as pandas, Excel, R and editors of other alphabets write them."""

import gzip
import io
import zipfile

import pytest

from idpgan.data.metadata import read_table
from idpgan.errors import DataError
from idpgan.host import own_state

TABLE = "file_name,mood,person\na/0.png,glad,anna\nb/1.png,sad,ben\n"


WRITTEN = {
    "mark": lambda text: text.encode("utf-8-sig"),
    "PowerShell": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "big endian": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "Excel": lambda text: ("sep=;\r\n" + text.replace(",", ";").replace("\n", "\r\n")).encode("utf-8-sig"),
    "quoted": lambda text: ('"sep=|"\n' + text.replace(",", "|")).encode(),
    "Unicode text": lambda text: text.replace(",", "\t").encode("utf-16"),
    "sep=tab": lambda text: ("sep=\t\n" + text.replace(",", "\t")).encode(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_tables_of_other_programs(tmp_path, name):
    (tmp_path / "t.csv").write_bytes(WRITTEN[name](TABLE))
    found = read_table(tmp_path / "t.csv")
    assert found.columns == ("file_name", "mood", "person")
    assert found.rows == (("a/0.png", "glad", "anna"), ("b/1.png", "sad", "ben"))


def numbered(first, numbers):
    lines = TABLE.splitlines()
    return "\n".join([f"{first},{lines[0]}", *(f"{k},{line}" for k, line in zip(numbers, lines[1:], strict=True))])


@pytest.mark.parametrize("text", [numbered("", (0, 1)), numbered('""', ('"1"', '"2"')), numbered("Unnamed: 0", (7, 3))])
def test_running_numbers_without_a_name_are_left_out(tmp_path, text, caplog):
    """As `to_csv` of pandas and `write.csv` of R write them, and as pandas calls them when it has read them."""
    (tmp_path / "t.csv").write_text(text)
    with own_state():
        found, _ = (read_table(tmp_path / "t.csv") for _ in range(2))
    assert found.columns == ("file_name", "mood", "person")
    assert found.rows == (("a/0.png", "glad", "anna"), ("b/1.png", "sad", "ben"))
    assert caplog.text.count("of running numbers without a name, is left out") == 1


@pytest.mark.parametrize("numbers", [("x", "y"), (1, 1), (0, "")])
def test_other_columns_without_a_name_are_refused(tmp_path, numbers):
    (tmp_path / "t.csv").write_text(numbered("", numbers))
    with pytest.raises(DataError, match="twice or without a name"):
        read_table(tmp_path / "t.csv")


def test_numbers_whose_column_is_asked_for_are_kept(tmp_path):
    (tmp_path / "t.csv").write_text("Unnamed: 0,mood\n0,glad\n1,sad\n")
    assert read_table(tmp_path / "t.csv", "Unnamed: 0").column("file_name") == ["0", "1"]


@pytest.mark.parametrize("word", ["Zo\u00eb", "\u20ac 5", "\u0160koda \u201ca\u201d", "cr\u00e9\u00e9e"])
def test_windows_1252_is_read_where_it_is_certain(tmp_path, word, caplog):
    (tmp_path / "t.csv").write_bytes(f"file_name,mood\r\na.png,{word}\r\n".encode("cp1252"))
    with own_state():
        assert [read_table(tmp_path / "t.csv").column("mood") for _ in range(2)] == [[word]] * 2
    assert caplog.text.count("was read as Windows-1252, as") == 1


OTHER = {
    "Cyrillic": "\u0410\u043d\u043d\u0430".encode("cp1251"),
    "Japanese": "\u5c71\u7530\u592a\u90ce".encode("shift_jis"),
    "Polish": "Ma\u0142gorzata".encode("cp1250"),
    "Chinese": "\u5f20\u4f1f".encode("gbk"),
    "half UTF-8": "Zo\u00eb".encode() + b" Zo\xeb",
    "control characters": b"Zo\xeb\x01",
    "no letter": b"Zo\x81",
    "UTF-16 without its mark": "Zo\u00eb".encode("utf-16-le"),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_encodings_are_one_line(tmp_path, name):
    content = b"file_name,mood\na.png," + OTHER[name] + b"\n"
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.csv is no text in UTF-8 or surely in Windows-1252\. Save it as") as caught:
        read_table(tmp_path / "t.csv")
    assert "codec" not in str(caught.value)


def packed(*names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in names:
            archive.writestr(name, text)
    return content.getvalue()


PROGRAMS = {
    "xlsx": (packed(("[Content_Types].xml", "<a/>"), ("xl/workbook.xml", "<a/>")), "is an Excel file: save it there"),
    "ods": (
        packed(("mimetype", "application/vnd.oasis.opendocument.spreadsheet"), ("content.xml", "<a/>")),
        "is an OpenDocument file: save it there as CSV",
    ),
    "xls": (bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600), r"is an Excel file of old \(\.xls\): save it there as CSV"),
    "zip": (packed(("t.csv", TABLE)), r"is an archive \(ZIP\): unpack"),
    "gz": (gzip.compress(TABLE.encode()), "is packed by gzip: unpack it"),
    "parquet": (b"PAR1" + bytes(20) + b"PAR1", "is a Parquet file: save it as CSV"),
}


@pytest.mark.parametrize("suffix", ["csv", "own", "jsonl"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_files_of_other_programs_are_called_what_they_are(tmp_path, name, suffix):
    content, said = PROGRAMS[name]
    path = tmp_path / f"t.{name if suffix == 'own' else suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_table(path)


def test_what_is_too_large_is_not_called_another_kind(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text(TABLE)
    monkeypatch.setattr("idpgan.data.metadata._MOST_BYTES", 10)
    with pytest.raises(ValueError, match=r"t\.csv has 56 bytes, but at most 10 are expected"):
        read_table(tmp_path / "t.csv")
