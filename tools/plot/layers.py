"""Which rows are of one layer, and what labels say where several layers share a name. Standard library only."""

import json

# Of a row's "problem", what makes no other layer: how a call of it runs, and what every label says already.
NOT_THE_LAYER = ("num_ranks", "max_tokens", "dtype", "wire_form", "result_form", "wave_tokens", "wave_ring")


def said_of_layer(row):
    return {key: value for key, value in row.get("problem", {}).items() if key not in NOT_THE_LAYER}


def with_layers(rows):
    """The rows, each with its "layer": what its problem says or, where that leaves something open (files of old have no
    problem), the only layer of its name in `rows` that it can be."""
    known = {}
    for row in rows:
        layers, said = known.setdefault(row["model"], []), said_of_layer(row)
        if said not in layers:
            layers.append(said)

    def layer_of(row):
        said, layers = said_of_layer(row), known[row["model"]]
        more = [one for one in layers if said.items() < one.items()]
        whole = [one for one in more if not any(one.items() < other.items() for other in more)]
        return whole[0] if len(whole) == 1 else said

    return [{**row, "layer": layer_of(row)} for row in rows]


def layer_key(row, without=()):
    """Equal for rows of one layer; `without`: what may differ."""
    return json.dumps({key: value for key, value in row["layer"].items() if key not in without}, sort_keys=True)


def fits(baseline_row, row):
    """Whether another system's measurement may be of the row's layer: what it says of the layer, in "problem" or beside
    the model, is so."""
    said = {**baseline_row, **baseline_row.get("problem", {})}
    return all(said.get(key, value) == value for key, value in row["layer"].items())


def telling_apart(rows, without=()):
    """A function from a row to the end of its label: what tells its layer from others of its name in `rows`, nothing
    where there is one. `without`: what the figure says already."""
    layers = {}
    for row in rows:
        layers.setdefault(row["model"], []).append(row["layer"])

    def text(row):
        of_name = layers[row["model"]]
        keys = sorted({key for layer in of_name for key in layer} - set(without))
        different = [key for key in keys if any(layer.get(key) != of_name[0].get(key) for layer in of_name)]
        if different and not row["layer"]:
            return ", sizes not recorded"
        return "".join(f", {words_of(key, row['layer'].get(key))}" for key in different)

    return text


def words_of(key, value):
    """"hidden 64", "not gated", "up bias"."""
    name = key.replace("_", " ")
    if value is None:
        return f"{name} not recorded"
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {value}"
