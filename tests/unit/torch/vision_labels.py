"""Tiny copies of torchvision's data sets for classification; see ``vision_files``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets

from unit.torch.tiny_files import folder, image, mat, text

# ---------------------------------------------------------------- classification


def caltech101(root: Path) -> Any:
    base = root / "caltech101"
    (base / "101_ObjectCategories" / "BACKGROUND_Google").mkdir(parents=True)
    for category, outlines in (("Faces", "Faces_2"), ("ant", "ant")):
        for number in (1, 2):
            image(base / "101_ObjectCategories" / category / f"image_{number:04d}.jpg")
            mat(base / "Annotations" / outlines / f"annotation_{number:04d}.mat", obj_contour=np.zeros((2, 3)))
    return datasets.Caltech101(root, target_type=["category", "annotation"])


def caltech256(root: Path) -> Any:
    for at, category in enumerate(("001.ak47", "002.flag")):
        for number in (1, 2):
            image(root / "caltech256" / "256_ObjectCategories" / category / f"{at + 1:03d}_{number:04d}.jpg")
    return datasets.Caltech256(str(root))


def celeba(root: Path) -> Any:
    base, names = root / "celeba", ["000001.jpg", "000002.jpg", "000003.jpg"]
    for name in names:
        image(base / "img_align_celeba" / name)
    text(base / "list_eval_partition.txt", "".join(f"{name} {at % 2}\n" for at, name in enumerate(names)))
    text(base / "identity_CelebA.txt", "".join(f"{name} 7\n" for name in names))
    for listing in ("list_bbox_celeba", "list_landmarks_align_celeba", "list_attr_celeba"):
        text(base / f"{listing}.txt", "3\na b\n" + "".join(f"{name} 1 -1\n" for name in names))
    return datasets.CelebA(root, split="train")


def clevr(root: Path) -> Any:
    base = root / "clevr" / "CLEVR_v1.0"
    for number in range(2):
        image(base / "images" / "train" / f"{number}.png")
    scenes = [{"image_filename": f"{number}.png", "objects": []} for number in range(2)]
    text(base / "scenes" / "CLEVR_train_scenes.json", json.dumps({"scenes": scenes}))
    return datasets.CLEVRClassification(root)


def country211(root: Path) -> Any:
    folder(root / "country211", "train")
    return datasets.Country211(root)


def dataset_folder(root: Path) -> Any:
    return datasets.DatasetFolder(folder(root), loader=datasets.folder.pil_loader, extensions=(".png",))


def dtd(root: Path) -> Any:
    for name in ("banded/a.jpg", "dotted/b.jpg"):
        image(root / "dtd" / "dtd" / "images" / name)
    text(root / "dtd" / "dtd" / "labels" / "train1.txt", "banded/a.jpg\ndotted/b.jpg\n")
    return datasets.DTD(root)


def eurosat(root: Path) -> Any:
    folder(root / "eurosat", "2750")
    return datasets.EuroSAT(root)


def fgvc_aircraft(root: Path) -> Any:
    data = root / "fgvc-aircraft-2013b" / "data"
    for name in ("1", "2"):
        image(data / "images" / f"{name}.jpg")
    text(data / "variants.txt", "707\n747 SP\n")
    text(data / "images_variant_trainval.txt", "2 747 SP\n1 707\n")
    return datasets.FGVCAircraft(root)


def flowers102(root: Path) -> Any:
    base = root / "flowers-102"
    for number in (1, 2, 3):
        image(base / "jpg" / f"image_{number:05d}.jpg")
    mat(base / "setid.mat", trnid=[3, 1], valid=[2, 2], tstid=[2, 2])
    mat(base / "imagelabels.mat", labels=[1, 2, 3])
    return datasets.Flowers102(root)


def food101(root: Path) -> Any:
    names = {"pie": ["pie/1", "pie/2"], "soup": ["soup/3"]}
    for name in names["pie"] + names["soup"]:
        image(root / "food-101" / "images" / f"{name}.jpg")
    text(root / "food-101" / "meta" / "train.json", json.dumps(names))
    return datasets.Food101(root)


def gtsrb_train(root: Path) -> Any:
    for label in ("00000", "00001"):
        image(root / "gtsrb" / "GTSRB" / "Training" / label / "a.ppm")
    return datasets.GTSRB(root)


def gtsrb_test(root: Path) -> Any:
    image(root / "gtsrb" / "GTSRB" / "Final_Test" / "Images" / "00000.ppm")
    text(root / "gtsrb" / "GT-final_test.csv", "Filename;ClassId\n00000.ppm;3\n")
    return datasets.GTSRB(root, split="test")


def image_folder(root: Path) -> Any:
    return datasets.ImageFolder(str(folder(root)))


def imagenet(root: Path) -> Any:
    for wnid in ("n01", "n02"):
        image(root / "train" / wnid / "a.JPEG")
    torch.save(({"n01": ("cat",), "n02": ("dog",)}, []), root / "meta.bin")
    return datasets.ImageNet(root)


def imagenette(root: Path) -> Any:
    for wnid in ("n01440764", "n02102040"):
        image(root / "imagenette2" / "train" / wnid / "a.JPEG")
        image(root / "imagenette2" / "train" / wnid / "b.jpeg")
    return datasets.Imagenette(root)


def inaturalist_2021(root: Path) -> Any:
    for at, name in enumerate(("k_p_c_o_f_g_s", "k_p_c_o_f_g_t")):
        image(root / "2021_train" / f"{at:05d}_{name}" / "a.jpg")
    return datasets.INaturalist(root)


def inaturalist_2018(root: Path) -> Any:
    for category in ("1", "0"):
        image(root / "2018" / "Plantae" / category / "a.jpg")
    return datasets.INaturalist(root, version="2018")


def _lfw(root: Path) -> None:
    for name in ("Al_Gore", "Bo_Derek"):
        for number in (1, 2):
            image(root / "lfw-py" / "lfw_funneled" / name / f"{name}_{number:04d}.jpg")
    text(root / "lfw-py" / "lfw-names.txt", "Al_Gore\t2\nBo_Derek\t2\n")
    text(root / "lfw-py" / "peopleDevTrain.txt", "2\nAl_Gore\t2\nBo_Derek\t1\n")
    text(root / "lfw-py" / "pairsDevTrain.txt", "1\nAl_Gore\t1\t2\nAl_Gore\t2\tBo_Derek\t1\n")


def lfw_people(root: Path) -> Any:
    _lfw(root)
    return datasets.LFWPeople(str(root), split="train")


def lfw_pairs(root: Path) -> Any:
    _lfw(root)
    return datasets.LFWPairs(str(root), split="train")


def omniglot(root: Path) -> Any:
    for character in ("Greek/character01", "Greek/character02", "Latin/character01"):
        image(root / "omniglot-py" / "images_background" / character / "0001_01.png")
    return datasets.Omniglot(root)


def _pets(root: Path) -> Path:
    base = root / "oxford-iiit-pet"
    for name in ("Abyssinian_1", "pug_2"):
        image(base / "images" / f"{name}.jpg")
        image(base / "annotations" / "trimaps" / f"{name}.png")
    text(base / "annotations" / "trainval.txt", "pug_2 2 2 1\nAbyssinian_1 1 1 1\n")
    return root


def oxford_pets(root: Path) -> Any:
    return datasets.OxfordIIITPet(_pets(root))


def oxford_pets_segmentation(root: Path) -> Any:
    return datasets.OxfordIIITPet(_pets(root), target_types=["segmentation", "category"])


def _places(root: Path) -> None:
    text(root / "categories_places365.txt", "/a/airfield 0\n/b/bar 1\n")
    text(root / "places365_train_standard.txt", "/b/bar/2.jpg 1\n/a/airfield/1.jpg 0\n")
    text(root / "places365_test.txt", "1.jpg\n2.jpg\n")
    for name in ("data_256_standard/b/bar/2", "data_256_standard/a/airfield/1", "test_256/1", "test_256/2"):
        image(root / f"{name}.jpg")


def places365_train(root: Path) -> Any:
    _places(root)
    return datasets.Places365(root, small=True)


def places365_test(root: Path) -> Any:
    _places(root)
    return datasets.Places365(root, split="test", small=True)


def rendered_sst2(root: Path) -> Any:
    for label in ("negative", "positive"):
        image(root / "rendered-sst2" / "train" / label / "1.png")
    return datasets.RenderedSST2(root)


def stanford_cars(root: Path) -> Any:
    base = root / "stanford_cars"
    for name in ("1.jpg", "2.jpg"):
        image(base / "cars_train" / name)
    rows = np.array([("2.jpg", 2), ("1.jpg", 1)], dtype=[("fname", "O"), ("class", "O")])
    mat(base / "devkit" / "cars_train_annos.mat", annotations=rows)
    mat(base / "devkit" / "cars_meta.mat", class_names=np.array(["a", "b"], dtype=object))
    return datasets.StanfordCars(root)


def sun397(root: Path) -> Any:
    for name in ("a/abbey/sun_1.jpg", "b/bar/sun_2.jpg"):
        image(root / "SUN397" / name)
    text(root / "SUN397" / "ClassName.txt", "/a/abbey\n/b/bar\n")
    return datasets.SUN397(root)


CLASSIFICATION: dict[str, Callable[[Path], Any]] = {
    name: value
    for name, value in sorted(globals().items())
    if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Any" and not name.startswith("_")
}
