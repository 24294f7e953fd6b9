"""`data prepare` against a local file server with small archives in the official layouts."""

import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from comastre.cli import main as cli
from comastre.config.run import DataConfig
from comastre.data.build import build_datasets
from comastre.data.download import fetch as downloading
from comastre.data.download import prepare as preparing
from comastre.data.download.prepare import ARCHIVES, prepare
from comastre.data.download.unpack import unpack
from comastre.errors import UserError
from small_data import mask_of, write_image, write_instances, write_mask, write_panoptic, write_sbd, write_voc


class Server:
    """A file server on the loopback that can resume, break off, and remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str | None]] = []
        self.break_off_after: int | None = None
        self.resumes = True
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                wanted = self.headers.get("Range")
                server.asked.append((self.path, wanted))
                path = folder / self.path.lstrip("/")
                if not path.is_file():
                    return self.send_error(404)
                content = path.read_bytes()
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.resumes else 0
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    return self.end_headers()
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                end, server.break_off_after = server.break_off_after, None
                return self.wfile.write(content[start:end])

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    server = Server(folder)
    yield server
    server.close()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


def served(server: Server, dataset: str, source: Path):
    """Pack the folders of `source` as the official archives, and describe these as the official ones are."""
    archives = []
    for archive in ARCHIVES[dataset]:
        path = server.folder / archive.file
        top = source / archive.file
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
                for file in sorted(top.rglob("*")):
                    packed.write(file, file.relative_to(top))
        else:
            with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as packed:
                for entry in sorted(top.iterdir()):
                    packed.add(entry, entry.name)
        md5 = archive.md5 and hashlib.md5(path.read_bytes()).hexdigest()
        archives.append(replace(archive, md5=md5))
    return archives


@pytest.fixture
def voc_archives(server, tmp_path):
    source = tmp_path / "source"
    write_voc(source / "VOCtrainval_11-May-2012.tar", {"t1": (0, 15)}, {"v1": (2, 3)}, more=("s1", "s2"))
    write_sbd(
        source / "benchmark.tgz" / "benchmark_RELEASE" / "dataset",
        {"t1": (7,), "s2": (4, 0)},
        {"v1": (9,), "s1": (5, 6)},
    )
    return served(server, "voc", source)


def voc_names(root):
    return [record.name for record in build_datasets(DataConfig(dataset="voc", root=str(root)))[0].records]


def test_voc_is_downloaded_unpacked_and_augmented(server, root, voc_archives, capsys):
    prepare("voc", root, server.url, archives=voc_archives)
    assert voc_names(root) == ["s1", "s2", "t1"]
    shutil.rmtree(root / "benchmark_RELEASE")  # the masks are files of VOC's now
    training, _ = build_datasets(DataConfig(dataset="voc", root=str(root)))
    assert training.presence() == [{5, 6}, {4}, {15}]
    assert np.array_equal(training[0].instances, mask_of(0, 1))
    assert not list((root / "downloads").iterdir())
    said = capsys.readouterr().out
    assert "3 training and 1 validation images" in said
    assert "official numbers are 10,582 and 1,449" in said
    assert f"comastre train voc-15-5 --data.root {root}" in said


def test_a_second_run_downloads_nothing(server, root, voc_archives):
    prepare("voc", root, server.url, keep_archives=True, archives=voc_archives)
    assert sorted(file.name for file in (root / "downloads").iterdir()) == [
        "VOCtrainval_11-May-2012.tar",
        "benchmark.tgz",
    ]
    server.asked.clear()
    prepare("voc", root, server.url, archives=voc_archives)
    assert server.asked == []


def test_ade20k_and_coco_are_prepared(server, root, tmp_path, capsys):
    source = tmp_path / "source"
    for part, name in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        folder = source / "ADEChallengeData2016.zip" / "ADEChallengeData2016"
        write_image(folder / "images" / part / f"{name}.jpg")
        write_mask(folder / "annotations" / part / f"{name}.png", 1, 150)
    prepare("ade20k", root / "ade", server.url, archives=served(server, "ade20k", source))
    training, _ = build_datasets(DataConfig(dataset="ade20k", root=str(root / "ade")))
    assert training.presence() == [{1, 150}]

    for split in ("train", "val"):
        write_panoptic(tmp_path / "made", split, ("a",))
        shutil.move(tmp_path / "made" / f"{split}2017", source / f"{split}2017.zip" / f"{split}2017")
        annotations = source / "annotations_trainval2017.zip" / "annotations"
        write_instances(annotations / f"instances_{split}2017.json", [], ("a.jpg",))
        panoptic = source / "panoptic_annotations_trainval2017.zip" / "annotations"
        panoptic.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "made" / "annotations" / f"panoptic_{split}2017.json", panoptic)
        with zipfile.ZipFile(panoptic / f"panoptic_{split}2017.zip", "w") as packed:  # zips in a zip, as COCO's
            mask = tmp_path / "made" / "annotations" / f"panoptic_{split}2017" / "a.png"
            packed.write(mask, f"panoptic_{split}2017/a.png")
    capsys.readouterr()
    prepare("coco", root / "coco", server.url, archives=served(server, "coco", source))
    training, _ = build_datasets(DataConfig(dataset="coco", root=str(root / "coco")))
    assert training.presence() == [{1, 2}]
    instances, _ = build_datasets(DataConfig(dataset="coco", root=str(root / "coco"), coco_labels="instances"))
    assert instances.class_names == ("car", "dog")
    # One archive has no known checksum: that is said, and what came is written down.
    assert "panoptic_annotations_trainval2017.zip: no official checksum is known" in capsys.readouterr().out
    kept = json.loads((root / "coco" / "downloads" / "checksums.json").read_text())
    served_file = server.folder / "panoptic_annotations_trainval2017.zip"
    assert kept[served_file.name]["sha256"] == hashlib.sha256(served_file.read_bytes()).hexdigest()


def test_a_broken_connection_is_taken_up_where_it_stopped(server, root, voc_archives, monkeypatch):
    monkeypatch.setattr(downloading, "_CHUNK", 1000)
    server.break_off_after = 3000
    prepare("voc", root, server.url, archives=voc_archives)
    assert server.asked[:2] == [
        ("/VOCtrainval_11-May-2012.tar", None),
        ("/VOCtrainval_11-May-2012.tar", "bytes=3000-"),
    ]
    assert voc_names(root) == ["s1", "s2", "t1"]


@pytest.mark.parametrize("resumes", [True, False])
def test_half_a_file_of_an_earlier_run_is_resumed_or_replaced(server, root, voc_archives, resumes):
    server.resumes = resumes
    content = (server.folder / "benchmark.tgz").read_bytes()
    (root / "downloads").mkdir(parents=True)
    (root / "downloads" / "benchmark.tgz.partial").write_bytes(content[:500])
    prepare("voc", root, server.url, archives=voc_archives)
    assert ("/benchmark.tgz", "bytes=500-") in server.asked
    assert voc_names(root) == ["s1", "s2", "t1"]


def test_a_whole_file_of_an_earlier_run_is_only_checked(server, root, voc_archives):
    (root / "downloads").mkdir(parents=True)
    content = (server.folder / "benchmark.tgz").read_bytes()
    (root / "downloads" / "benchmark.tgz.partial").write_bytes(content)
    prepare("voc", root, server.url, archives=voc_archives)
    assert voc_names(root) == ["s1", "s2", "t1"]


def test_a_damaged_archive_is_thrown_away_and_nothing_is_unpacked(server, root, voc_archives):
    path = server.folder / "VOCtrainval_11-May-2012.tar"
    good = path.read_bytes()
    path.write_bytes(good[:-2000] + b"damage" + good[-1994:])
    with pytest.raises(UserError, match=r"VOCtrainval.* arrived damaged \(its MD5 is not .*run the command again"):
        prepare("voc", root, server.url, archives=voc_archives)
    assert [entry.name for entry in root.iterdir()] == ["downloads"]
    assert not list((root / "downloads").iterdir())
    path.write_bytes(good)
    prepare("voc", root, server.url, archives=voc_archives)
    assert voc_names(root) == ["s1", "s2", "t1"]


@pytest.mark.parametrize("damage", ["end", "middle"])
def test_damage_without_a_checksum_is_found_on_unpacking(server, root, tmp_path, damage):
    source = tmp_path / "source" / "ADEChallengeData2016.zip" / "ADEChallengeData2016"
    write_image(source / "images" / "training" / "ADE_train_00000001.jpg", (200, 200))
    (archive,) = served(server, "ade20k", tmp_path / "source")
    path = server.folder / archive.file
    good = bytearray(path.read_bytes())
    if damage == "end":
        good = good[: len(good) // 2]
    else:
        place = good.index(b"\xff\xd8") if b"\xff\xd8" in good else len(good) // 2
        good[place : place + 40] = bytes(40)
    path.write_bytes(good)
    with pytest.raises(UserError, match=r"ADEChallengeData2016.zip is damaged .*was removed"):
        prepare("ade20k", root, server.url, archives=[replace(archive, md5=None)])
    assert [entry.name for entry in root.iterdir()] == ["downloads"]
    assert [entry.name for entry in (root / "downloads").iterdir()] == ["checksums.json"]


def test_archives_cannot_write_elsewhere(server, root, tmp_path, voc_archives):
    with tarfile.open(server.folder / "VOCtrainval_11-May-2012.tar", "w") as packed:
        entry = tarfile.TarInfo("../escaped.txt")
        entry.size = 1
        packed.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(UserError, match="is damaged"):
        prepare("voc", root, server.url, archives=[replace(each, md5=None) for each in voc_archives])
    assert not list(tmp_path.rglob("escaped.txt"))


def test_too_little_space_is_said_before_anything_is_downloaded(server, root, voc_archives, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(preparing.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"0\.0 GB free but about .* GB are needed"):
        prepare("voc", root, server.url, archives=voc_archives)
    assert server.asked == []


def test_what_cannot_be_reached_is_named(server, root, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"VOCtrainval.* cannot be reached: the server answers 404"):
        prepare("voc", root, server.url)
    with pytest.raises(UserError, match="no dataset 'imagenet' to prepare: choose voc, ade20k, coco"):
        prepare("imagenet", root)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.* cannot be written"):
        prepare("voc", tmp_path / "file" / "below")
    monkeypatch.setattr(downloading, "ATTEMPTS", 1)
    with pytest.raises(UserError, match=r"cannot be reached: Connection refused\. Check the connection"):
        prepare("voc", root, "http://127.0.0.1:9")
    assert not root.exists()


def test_a_connection_that_keeps_breaking_keeps_what_has_come(server, root, voc_archives, monkeypatch):
    monkeypatch.setattr(downloading, "ATTEMPTS", 1)
    monkeypatch.setattr(downloading, "_CHUNK", 1000)
    server.break_off_after = 3000
    with pytest.raises(UserError, match=r"cannot be downloaded: .*is kept: run the command again"):
        prepare("voc", root, server.url, archives=voc_archives)
    assert (root / "downloads" / "VOCtrainval_11-May-2012.tar.partial").stat().st_size == 3000


def test_official_archives_are_described_whole():
    for archives in ARCHIVES.values():
        for archive in archives:
            assert archive.url.startswith(("http://", "https://"))
            assert archive.md5 is None or len(bytes.fromhex(archive.md5)) == 16
    assert [archive.file for archive in ARCHIVES["voc"]] == ["VOCtrainval_11-May-2012.tar", "benchmark.tgz"]


def test_from_the_command_line_official_checksums_decide(server, root, voc_archives, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", "prepare", "voc", "--root", str(root), "--base-url", server.url])
    said = capsys.readouterr()
    assert stop.value.code == 1
    assert "arrived damaged (its MD5 is not 6cd6e144f989b92b3379bac3b3de84fd)" in said.err
    assert said.err.count("\n") == 1


# --- what servers and killed programs leave --------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["many", "-5", "1e3", "9" * 5000, ""])
def test_a_length_that_is_no_number_is_none(length):
    assert downloading._length(SimpleNamespace(headers={"content-length": length})) == 0


def test_an_encrypted_archive_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("secret.txt", "content")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[6] |= 1  # the bit of the entry's own header that says that it is encrypted
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and that of the directory
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.zip is damaged .*(encrypted|password)"):
        unpack(tmp_path / "a.zip", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_kills_left_is_swept(server, voc_archives, root):
    left = root / ".unpacking-abc"
    left.mkdir(parents=True)
    (left / "half.jpg").write_bytes(b"half")
    prepare("voc", root, server.url, archives=voc_archives)
    assert not left.exists()
    assert len(voc_names(root)) > 0


def test_two_do_not_prepare_one_folder(server, voc_archives, root):
    from filelock import FileLock

    (root / "downloads").mkdir(parents=True)
    with FileLock(root / "downloads" / ".lock"), pytest.raises(UserError, match="is being prepared by another process"):
        prepare("voc", root, server.url, archives=voc_archives)


@pytest.mark.parametrize("content", ["", '{"a": {"ur', "[]", "[" * 100_000])
def test_a_damaged_list_of_checksums_is_written_anew(tmp_path, content):
    file, archive = tmp_path / "checksums.json", ARCHIVES["coco"][3]
    file.write_text(content)
    (tmp_path / "a.zip").write_bytes(b"content")
    preparing._record_checksum(file, archive, "http://here", tmp_path / "a.zip")
    assert json.loads(file.read_text())[archive.file]["sha256"] == hashlib.sha256(b"content").hexdigest()
