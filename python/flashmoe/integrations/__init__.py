"""flashmoe inside other libraries' models."""


def __dir__() -> list[str]:
    return sorted({*globals(), "transformers"})


def __getattr__(name: str):
    if name != "transformers":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module(".transformers", __name__)
