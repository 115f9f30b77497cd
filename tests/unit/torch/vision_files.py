"""Tiny copies of the data sets that torchvision reads, each made so that the real class constructs.

A function of ``BUILDERS`` writes the files below a directory and returns the dataset. Checksums of archives are not
checked: ``CHECKED`` names the modules whose ``check_integrity`` the test replaces.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from torchvision import datasets

from unit.torch.tiny_files import flo, flow_png, image, mat, pfm, text
from unit.torch.vision_labels import CLASSIFICATION

CHECKED = ("celeba", "flowers102", "imagenet", "lfw", "omniglot", "places365", "sbu")

# ---------------------------------------------------------------- detection, segmentation, captions


def cityscapes(root: Path) -> Any:
    for city in ("bonn", "ulm"):
        image(root / "leftImg8bit" / "train" / city / "1_leftImg8bit.png")
        targets = root / "gtFine" / "train" / city
        text(targets / "1_gtFine_polygons.json", "{}")
        image(targets / "1_gtFine_labelIds.png")
    return datasets.Cityscapes(root, target_type=["polygon", "semantic"])


def _coco(root: Path) -> dict[str, Any]:
    names = {9: "b.jpg", 4: "sub/a.jpg"}
    for name in names.values():
        image(root / "images" / name)
    content = {
        "images": [{"id": key, "file_name": name} for key, name in names.items()],
        "annotations": [{"id": 1, "image_id": 4, "caption": "a", "bbox": [0, 0, 1, 1]}],
    }
    text(root / "annotations.json", json.dumps(content))
    return {"root": root / "images", "annFile": str(root / "annotations.json")}


def coco_detection(root: Path) -> Any:
    return datasets.CocoDetection(**_coco(root))


def coco_captions(root: Path) -> Any:
    return datasets.CocoCaptions(**_coco(root))


def wrapped_coco(root: Path) -> Any:
    return datasets.wrap_dataset_for_transforms_v2(coco_detection(root), target_keys=["image_id"])


def _kitti(root: Path, split: str) -> None:
    for number in range(2):
        image(root / "Kitti" / "raw" / split / "image_2" / f"{number}.png")
        text(root / "Kitti" / "raw" / split / "label_2" / f"{number}.txt", "Car 0 0 " + "0 " * 11 + "0\n")


def kitti_train(root: Path) -> Any:
    _kitti(root, "training")
    return datasets.Kitti(root)


def kitti_test(root: Path) -> Any:
    _kitti(root, "testing")
    return datasets.Kitti(root, train=False)


def _sbd(root: Path) -> None:
    kind = [("Boundaries", "O"), ("Segmentation", "O")]
    boundaries = np.empty((20, 1), dtype=object)
    for row in range(20):
        boundaries[row, 0] = scipy.sparse.csc_matrix((2, 2))
    classes = np.empty((1, 1), dtype=kind)
    classes[0, 0] = (boundaries, np.zeros((2, 2), dtype=np.uint8))
    for name in ("1", "2"):
        image(root / "img" / f"{name}.jpg")
        mat(root / "cls" / f"{name}.mat", GTcls=classes)
    text(root / "train.txt", "2\n1\n")


def sbd_boundaries(root: Path) -> Any:
    _sbd(root)
    return datasets.SBDataset(root)


def sbd_segmentation(root: Path) -> Any:
    _sbd(root)
    return datasets.SBDataset(root, mode="segmentation")


def _voc(root: Path) -> Path:
    base = root / "VOCdevkit" / "VOC2012"
    for name in ("1", "2"):
        image(base / "JPEGImages" / f"{name}.jpg")
        image(base / "SegmentationClass" / f"{name}.png")
        text(base / "Annotations" / f"{name}.xml", "<annotation><object><name>cat</name></object></annotation>")
    for kind in ("Main", "Segmentation"):
        text(base / "ImageSets" / kind / "train.txt", "2\n1\n")
    return root


def voc_detection(root: Path) -> Any:
    return datasets.VOCDetection(_voc(root))


def voc_segmentation(root: Path) -> Any:
    return datasets.VOCSegmentation(_voc(root))


def wider_face(root: Path) -> Any:
    base = root / "widerface"
    for name in ("WIDER_train", "WIDER_val", "WIDER_test", "wider_face_split"):
        (base / name).mkdir(parents=True)
    for name in ("x/1.jpg", "x/2.jpg"):
        image(base / "WIDER_train" / "images" / name)
    content = "".join(f"{name}\n1\n0 0 1 1 0 0 0 0 0 0\n" for name in ("x/2.jpg", "x/1.jpg"))
    text(base / "wider_face_split" / "wider_face_train_bbx_gt.txt", content)
    return datasets.WIDERFace(root)


def flickr8k(root: Path) -> Any:
    rows = ""
    for name in ("22", "11"):
        image(root / "images" / f"{name}_a.jpg")
        rows += f"<tr><td><a href=''>http://www.flickr.com/photos/x/{name}/</a><ul><li>words</li></ul></td></tr>"
    text(root / "captions.html", f"<table>{rows}</table>")
    return datasets.Flickr8k(root / "images", str(root / "captions.html"))


def flickr30k(root: Path) -> Any:
    for name in ("1.jpg", "2.jpg"):
        image(root / "images" / name)
    text(root / "captions.txt", "2.jpg#0\twords\n1.jpg#0\twords\n1.jpg#1\twords\n")
    return datasets.Flickr30k(str(root / "images"), str(root / "captions.txt"))


def sbu(root: Path) -> Any:
    names = ("b.jpg", "a.jpg", "missing.jpg")
    for name in names[:2]:
        image(root / "dataset" / name)
    for listing in ("urls", "captions"):
        lines = "".join(f"http://x/{name}\n" for name in names)
        text(root / "dataset" / f"SBU_captioned_photo_dataset_{listing}.txt", lines)
    return datasets.SBU(root, download=False)


# ---------------------------------------------------------------- optical flow


def flying_chairs(root: Path) -> Any:
    base = root / "FlyingChairs"
    for number in (1, 2):
        flo(base / "data" / f"{number:05d}_flow.flo")
        for side in (1, 2):
            image(base / "data" / f"{number:05d}_img{side}.ppm")
    text(base / "FlyingChairs_train_val.txt", "2\n1\n")
    return datasets.FlyingChairs(root)


def flying_things(root: Path) -> Any:
    base = root / "FlyingThings3D"
    for number in range(3):
        image(base / "frames_cleanpass" / "TRAIN" / "A" / "0000" / "left" / f"{number:04d}.png")
        for direction in ("into_future", "into_past"):
            pfm(base / "optical_flow" / "TRAIN" / "A" / "0000" / direction / "left" / f"{number:04d}.pfm")
    return datasets.FlyingThings3D(root)


def hd1k(root: Path) -> Any:
    for number in range(3):
        flow_png(root / "hd1k" / "hd1k_flow_gt" / "flow_occ" / f"000000_{number:04d}.png")
        image(root / "hd1k" / "hd1k_input" / "image_2" / f"000000_{number:04d}.png")
    return datasets.HD1K(root)


def kitti_flow(root: Path) -> Any:
    base = root / "KittiFlow" / "training"
    for number in range(2):
        flow_png(base / "flow_occ" / f"{number}_10.png")
        image(base / "image_2" / f"{number}_10.png")
        image(base / "image_2" / f"{number}_11.png")
    return datasets.KittiFlow(root)


def _sintel(root: Path, split: str) -> None:
    for number in range(3):
        image(root / "Sintel" / split / "clean" / "alley" / f"frame_{number}.png")
    for number in range(2):
        flo(root / "Sintel" / split / "flow" / "alley" / f"frame_{number}.flo")


def sintel_train(root: Path) -> Any:
    _sintel(root, "training")
    return datasets.Sintel(root)


def sintel_test(root: Path) -> Any:
    _sintel(root, "test")
    return datasets.Sintel(root, split="test")


# ---------------------------------------------------------------- stereo


def carla(root: Path) -> Any:
    for scene in ("a", "b"):
        for side in (0, 1):
            image(root / "carla-highres" / "trainingF" / scene / f"im{side}.png")
            pfm(root / "carla-highres" / "trainingF" / scene / f"disp{side}GT.pfm")
    return datasets.CarlaStereo(root)


def cre(root: Path) -> Any:
    for kind in ("shapenet", "reflective", "tree", "hole"):
        for side in ("left", "right"):
            image(root / "CREStereo" / kind / f"1_{side}.jpg")
            image(root / "CREStereo" / kind / f"1_{side}.disp.png")
    return datasets.CREStereo(root)


def _eth3d(root: Path) -> None:
    for scene in ("a", "b"):
        for side in (0, 1):
            image(root / "ETH3D" / "two_view_training" / scene / f"im{side}.png")
            image(root / "ETH3D" / "two_view_test" / scene / f"im{side}.png")
        pfm(root / "ETH3D" / "two_view_training_gt" / scene / "disp0GT.pfm")
        image(root / "ETH3D" / "two_view_training_gt" / scene / "mask0nocc.png")


def eth3d_train(root: Path) -> Any:
    _eth3d(root)
    return datasets.ETH3DStereo(root)


def eth3d_test(root: Path) -> Any:
    _eth3d(root)
    return datasets.ETH3DStereo(root, split="test")


def falling_things(root: Path) -> Any:
    settings = {"camera_settings": [{"intrinsic_settings": {"fx": 1.0}}]}
    for number in range(2):
        scene = root / "FallingThings" / "single" / f"object{number}" / "kitchen"
        text(scene / "_camera_settings.json", json.dumps(settings))
        for side in ("left", "right"):
            image(scene / f"0.{side}.jpg")
            image(scene / f"0.{side}.depth.png")
    return datasets.FallingThingsStereo(root)


def in_stereo(root: Path) -> Any:
    for scene in ("a", "b"):
        for name in ("left", "right", "left_disp", "right_disp"):
            image(root / "InStereo2k" / "train" / scene / f"{name}.png")
    return datasets.InStereo2k(root)


def kitti2012_train(root: Path) -> Any:
    for name in ("colored_0", "colored_1", "disp_noc"):
        image(root / "Kitti2012" / "training" / name / "1_10.png")
    return datasets.Kitti2012Stereo(root)


def kitti2012_test(root: Path) -> Any:
    for name in ("colored_0", "colored_1"):
        image(root / "Kitti2012" / "testing" / name / "1_10.png")
    return datasets.Kitti2012Stereo(root, split="test")


def kitti2015(root: Path) -> Any:
    for name in ("image_2", "image_3", "disp_occ_0", "disp_occ_1"):
        image(root / "Kitti2015" / "training" / name / "1.png")
    return datasets.Kitti2015Stereo(root)


def middlebury(root: Path, *, use_ambient_views: bool = False) -> Any:
    for scene in ("Piano", "Pipes"):
        for side in (0, 1):
            image(root / "Middlebury2014" / "train" / f"{scene}-perfect" / f"im{side}.png")
            pfm(root / "Middlebury2014" / "train" / f"{scene}-perfect" / f"disp{side}.pfm")
    return datasets.Middlebury2014Stereo(root, use_ambient_views=use_ambient_views)


def scene_flow(root: Path) -> Any:
    for side in ("left", "right"):
        image(root / "SceneFlow" / "Monkaa" / "frames_cleanpass" / "a" / side / "1.png")
        pfm(root / "SceneFlow" / "Monkaa" / "disparity" / "a" / side / "1.pfm")
    return datasets.SceneFlowStereo(root, variant="Monkaa")


def sintel_stereo(root: Path) -> Any:
    for scene in ("alley", "bamboo"):
        for name in ("final_left", "final_right", "disparities", "occlusions", "outofframe"):
            image(root / "Sintel" / "training" / name / scene / "frame_1.png")
    return datasets.SintelStereo(root)


BUILDERS: dict[str, Callable[[Path], Any]] = CLASSIFICATION | {
    name: value
    for name, value in sorted(globals().items())
    if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Any" and not name.startswith("_")
}
