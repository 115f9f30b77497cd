"""Makes ``data/shard-000.tar`` and three more for the page's lines: pictures and their classes, as WebDataset has them."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

Path("data").mkdir(exist_ok=True)
for shard in range(4):
    with tarfile.open(f"data/shard-{shard:03}.tar", "w") as tar:
        for number in range(16):
            picture = io.BytesIO()
            size = (40 + number, 40, 3)
            Image.fromarray(np.random.default_rng(number).integers(0, 255, size, dtype=np.uint8)).save(picture, "JPEG")
            for name, data in (("jpg", picture.getvalue()), ("cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{shard}-{number:02}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
