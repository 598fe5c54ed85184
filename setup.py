"""Packages: folders beside `omlx/` are installed inside it, so a wheel is complete."""

from pathlib import Path

from setuptools import find_packages, setup

BESIDE = {f"omlx.{name}": name for name in ("admin", "locales", "static", "templates")}

setup(
    packages=[
        *find_packages(include=["omlx", "omlx.*"]),
        *BESIDE,
        *(f"omlx.{name}" for name in find_packages(include=["admin.*"])),
    ],
    package_dir={"omlx": "omlx", **BESIDE},
    package_data={
        "omlx": [
            "py.typed",
            "measure/texts/**/*.txt",
            "models/hub/*.json",
            "models/hub/*.safetensors",
            *(
                str(path.relative_to("omlx"))
                for path in Path("omlx/bundled").rglob("*")
                if path.is_file()
            ),
        ],
        "omlx.locales": ["*.json"],
        "omlx.static": ["**/*"],
        "omlx.templates": ["**/*.html"],
    },
)
