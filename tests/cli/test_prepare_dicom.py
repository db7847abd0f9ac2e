"""DICOM files become pictures as they are meant to be seen, and nothing of their tags stays."""

import csv
import itertools

import numpy as np
import pytest

from idpgan.commands.prepare import PrepareOptions, prepare_photos
from idpgan.data.dicom import View, patients, picture
from idpgan.data.photos import photo_pixels
from idpgan.errors import DataError, InputError

pydicom = pytest.importorskip("pydicom", reason="the extra idpgan[dicom] is not installed")
STORED = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of pydicom's own files, which break its rules


def write(path, pixels=STORED, **tags):
    """Write a grey file, or one of several frames."""
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", "1.2.3"
    data.Rows, data.Columns = pixels.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 12, 11
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    data.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)
    return path


def shown(path, **view):
    return np.asarray(picture(path, View(**view))).astype(int)


def by_range(values, low, high):
    return np.floor((values.clip(low, high) - low) * 255 / (high - low) + 0.5)


GREYS = {  # tags, declared window -> the values that become black and white
    "its bits": ({}, None, (0, 4095)),
    "its own window": ({"WindowCenter": 1000, "WindowWidth": 401}, None, (799.5, 1199.5)),
    "the first of its windows": ({"WindowCenter": [1000, 40], "WindowWidth": [401, 80]}, None, (799.5, 1199.5)),
    "its own window, exactly": (
        {"WindowCenter": 1000, "WindowWidth": 400, "VOILUTFunction": "LINEAR_EXACT"},
        None,
        (800, 1200),
    ),
    "a declared window": ({"WindowCenter": 1000, "WindowWidth": 401}, (100, 500), (100, 500)),
}


@pytest.mark.parametrize("name", GREYS)
@pytest.mark.parametrize("low_is_white", [False, True])
def test_what_is_black_and_what_is_white(tmp_path, name, low_is_white):
    tags, window, limits = GREYS[name]
    kind = "MONOCHROME1" if low_is_white else "MONOCHROME2"
    found = shown(write(tmp_path / "a.dcm", PhotometricInterpretation=kind, **tags), window=window)
    expected = by_range(STORED.astype(float), *limits)
    assert np.array_equal(found, 255 - expected if low_is_white else expected)


def test_a_window_is_of_rescaled_values_and_signs_count(tmp_path):
    path = write(tmp_path / "a.dcm", STORED.astype(np.int16) - 1200, RescaleSlope=2, RescaleIntercept=-100)
    values = 2 * (STORED.astype(float) - 1200) - 100
    assert np.array_equal(shown(path, window=(-160.0, 240.0)), by_range(values, -160, 240))
    assert np.array_equal(shown(path), by_range(values, 2 * -2048 - 100, 2 * 2047 - 100))


def test_a_soft_window(tmp_path):
    path = write(tmp_path / "a.dcm", WindowCenter=1200, WindowWidth=400, VOILUTFunction="SIGMOID")
    found = shown(path)
    assert abs(found[20, 0] - 127.5) <= 0.5  # 1200 lies there
    assert found.min() == 0
    assert found.max() == 255


FLIPS = list(itertools.product((1, -1), (1, -1), (False, True)))


@pytest.mark.parametrize(("across", "down", "swapped"), FLIPS)
def test_it_is_turned_to_the_usual_view(tmp_path, across, down, swapped):
    letters = ["L" if across > 0 else "R", "F" if down > 0 else "H"]
    cosines = [[across, 0.0, 0.1], [0.0, 0.1, -down]]
    stored = STORED[::down, ::across]
    if swapped:
        letters, cosines, stored = letters[::-1], cosines[::-1], stored.T
    usual = shown(write(tmp_path / "usual.dcm"))
    for name, tags in (
        ("radiograph", {"PatientOrientation": letters}),
        ("slice", {"ImageOrientationPatient": [number for axis in cosines for number in axis]}),
    ):
        path = write(tmp_path / f"{name}.dcm", np.ascontiguousarray(stored), **tags)
        assert np.array_equal(shown(path), usual), name
    as_stored = write(tmp_path / "mg.dcm", np.ascontiguousarray(stored), PatientOrientation=letters, Modality="MG")
    assert (shown(as_stored).shape == usual.shape) == (not swapped)


def test_frames_are_named(tmp_path):
    path = write(tmp_path / "a.dcm", np.stack([STORED, STORED + 100]), NumberOfFrames=2)
    assert np.array_equal(shown(path, frame=2), shown(write(tmp_path / "b.dcm", STORED + 100)))
    with pytest.raises(DataError, match="holds 2 frames; say with --frame which"):
        picture(path)
    with pytest.raises(DataError, match="--frame 3 is none of them"):
        picture(path, View(frame=3))
    assert shown(tmp_path / "b.dcm", frame=1).shape == STORED.shape


def own(name):
    from pydicom.data import get_testdata_file

    return get_testdata_file(name, download=False)


PICTURES = {  # pydicom's own files -> size, mode
    "CT_small.dcm": ((128, 128), "L"),
    "MR_small.dcm": ((64, 64), "L"),
    "MR_small_RLE.dcm": ((64, 64), "L"),
    "MR_small_bigendian.dcm": ((64, 64), "L"),
    "SC_rgb_small_odd.dcm": ((3, 3), "RGB"),
    "SC_rgb_rle.dcm": ((100, 100), "RGB"),
    "SC_ybr_full_422_uncompressed.dcm": ((100, 100), "RGB"),
    "examples_palette.dcm": ((800, 350), "RGB"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_files_of_pydicoms_own_tests(name):
    found = picture(own(name), View((-160.0, 240.0) if name.startswith("CT") else None))
    assert (found.size, found.mode) == PICTURES[name]
    assert found.info == {}
    assert np.asarray(found).std() > 10


def test_packed_files_are_shown_as_the_others():
    for packed in ("MR_small_RLE.dcm", "MR_small_bigendian.dcm"):
        assert np.array_equal(np.asarray(picture(own(packed))), np.asarray(picture(own("MR_small.dcm"))))


@pytest.mark.parametrize("name", ["rtplan.dcm", "test-SR.dcm", "MR_truncated.dcm", "rtdose.dcm"])
def test_what_is_no_picture_is_one_line(name):
    with pytest.raises(DataError) as caught:
        picture(own(name))
    assert "\n" not in str(caught.value)


def test_a_compression_without_its_plug_in_says_what_to_install(monkeypatch):
    from pydicom import pixels

    def none(*_, **__):
        raise RuntimeError("no plug-in")

    monkeypatch.setattr(pixels, "pixel_array", none)
    with pytest.raises(DataError, match=r"is compressed \(JPEG 2000 .*pip install pylibjpeg\[all\]"):
        picture(own("JPEG2000.dcm"))


@pytest.fixture
def scans(tmp_path):
    """Twelve files of four patients, whose tags name them, with a table of findings."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(12):
        secret = {"PatientID": f"ID-{number % 4}", "PatientName": "Doe^Jane", "InstitutionName": "St Elsewhere"}
        write(folder / f"{number:02}.dcm", STORED + 7 * number, Modality="CR", **secret)
    lines = ["file_name,finding", *(f"{number:02}.dcm,{'ill' if number % 3 else 'well'}" for number in range(12))]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_they_are_prepared_and_no_tag_is_written(run, scans, tmp_path):
    code, said, error = run(
        "prepare", scans, tmp_path / "out", "--size", 28, "--grey", "--patients", "--window", "0:4095"
    )
    assert (code, error) == (0, "")
    assert "Of 12 DICOM files the pixels were taken and no tag. Text burnt into them was not looked for." in said
    rows = list(csv.DictReader((tmp_path / "out" / "metadata.csv").open()))
    assert [row["finding"] for row in rows] == ["ill" if number % 3 else "well" for number in range(12)]
    people = [row["person"] for row in rows]
    assert people == people[:4] * 3
    assert len(set(people)) == 4
    for path in (tmp_path / "out").rglob("*"):
        for secret in (b"ID-", b"Doe", b"Elsewhere", b"1.2.3"):
            assert path.is_dir() or secret not in path.read_bytes(), path
    expected = photo_pixels(scans / "00.dcm", 1, (28, 28), "center", View((0.0, 4095.0)))[0]
    found = photo_pixels(tmp_path / "out" / "00.png", 1, (28, 28), "none")[0]
    assert np.array_equal(found, expected)


def test_patients_are_other_names_each_time_and_must_be_there(scans):
    paths = sorted(scans.glob("*.dcm"))
    first, second = patients(paths), patients(paths)
    assert [first.index(name) for name in first] == [second.index(name) for name in second]
    assert not set(first) & set(second)
    write(paths[3])
    with pytest.raises(DataError, match=r"03\.dcm names no patient"):
        patients(paths)
    with pytest.raises(DataError, match="names no patient"):
        patients([scans / "metadata.csv"])
    paths[3].write_bytes(b"damaged")
    with pytest.raises(DataError, match="is not a DICOM file that can be read"):
        patients(paths)


def test_a_table_of_grey_values(tmp_path):
    table = pydicom.Dataset()
    table.add_new("LUTDescriptor", "US", [4096, 0, 12])
    table.add_new("LUTData", "US", [4095 - value for value in range(4096)])
    found = shown(write(tmp_path / "a.dcm", VOILUTSequence=pydicom.Sequence([table])))
    assert np.array_equal(found, by_range(4095.0 - STORED, 0, 4095))


def test_a_damaged_file_keeps_its_row(scans, tmp_path):
    (scans / "05.dcm").write_bytes(b"damaged")
    done = prepare_photos(scans, tmp_path / "out", PrepareOptions("28"))
    assert done.refused == (("05.png", "is not a DICOM file that can be read; replace it"),)


@pytest.mark.parametrize("window", ["1", "5:5", "9:1", "a:b", "nan:inf"])
def test_a_window_is_a_range(window):
    with pytest.raises(InputError, match=r"is no range\. Write LOW:HIGH"):
        PrepareOptions("28", window=window)


def test_without_pydicom_one_line_says_what_to_install(scans, tmp_path, monkeypatch):
    from idpgan.data import dicom

    dicom._pydicom.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(InputError, match=r'pip install "idpgan\[dicom\]"'):
        prepare_photos(scans, tmp_path / "out", PrepareOptions("28"))
    assert not (tmp_path / "out").exists()
    dicom._pydicom.cache_clear()


def test_files_without_a_suffix_are_read_where_one_of_them_is_dicom(run, scans, tmp_path):
    for path, name in zip(sorted(scans.glob("*.dcm")), ("IM1", "1.2.840.1", "1.2.840.2", "x.IMA"), strict=False):
        path.rename(scans / name)
    (scans / "IM2").write_bytes((scans / "IM1").read_bytes()[128:])  # the preamble is missing
    (scans / "IM3").write_bytes(b"")
    (scans / "DICOMDIR").write_bytes((scans / "IM1").read_bytes())
    (scans / "metadata.csv").unlink()
    done = prepare_photos(scans, tmp_path / "out", PrepareOptions("28", grey=True))
    made = {path.name for path in done.out.glob("*.png")}
    assert made == {"IM1.png", "1.2.840.1.png", "1.2.840.2.png", "x.png", *(f"{k:02}.png" for k in range(4, 12))}
    assert done.left_out == ("DICOMDIR",)
    assert done.refused == tuple((f"IM{k}.png", "is not a DICOM file that can be read; replace it") for k in (2, 3))
    expected = photo_pixels(scans / "IM1", 1, (28, 28), "center")[0]
    assert np.array_equal(photo_pixels(done.out / "IM1.png", 1, (28, 28), "none")[0], expected)


def test_names_without_a_suffix_alone_are_no_photos(run, scans, tmp_path):
    (scans / "README").write_text("mine")
    for path in scans.glob("*.dcm"):
        path.unlink()
    code, _, err = run("prepare", scans, tmp_path / "out", "--size", 28)
    assert (code, err.count("\n")) == (2, 1)
    assert "holds no photos" in err


EMPTY = {  # tags -> slope and intercept
    "both": ({"RescaleSlope": "", "RescaleIntercept": None}, (1, 0)),
    "slope": ({"RescaleSlope": "", "RescaleIntercept": -100}, (1, -100)),
    "intercept": ({"RescaleSlope": 2, "RescaleIntercept": ""}, (2, 0)),
    "no intercept": ({"RescaleSlope": 2}, (2, 0)),
    "windows": ({"WindowWidth": "", "WindowCenter": ""}, (1, 0)),
    "center": ({"WindowWidth": 400, "WindowCenter": ""}, (1, 0)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_tag_is_none(tmp_path, name):
    tags, (slope, intercept) = EMPTY[name]
    path = write(tmp_path / "a.dcm", **tags)
    values = slope * STORED.astype(float) + intercept
    assert np.array_equal(shown(path), by_range(values, intercept, slope * 4095 + intercept))
    assert np.array_equal(shown(path, window=(100.0, 900.0)), by_range(values, 100, 900))
