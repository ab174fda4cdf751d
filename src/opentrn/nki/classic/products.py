"""What a mask leaves of a matrix product.

The indices of a mask are those of the result: rows are columns of the stationary tile, columns those of the
moving one. A mask over rows can also mean the contraction, whose index is written the same way: it does where
the sizes say so, and where just as many partitions of an operand have been filled under a mask.
"""

from __future__ import annotations

from typing import Any

from opentrn.errors import UnimplementedError, UnsupportedError
from opentrn.nki.classic.indexing import Mask
from opentrn.nki.classic.tile import box_of
from opentrn.nki.classic.views import crop, filled_rows
from opentrn.nki.tensor import NkiTensor

Box = list[tuple[int, int]]


def masked_product(
    x: NkiTensor, y: NkiTensor, shape: tuple[int, ...], mask: Any
) -> tuple[NkiTensor, NkiTensor, tuple[int, ...], Box | None]:
    """(stationary, moving, shape of the result, the box of the result that is written)."""
    if not isinstance(mask, Mask):
        return x, y, shape, box_of(mask, shape)
    rows, contraction = shape[0], x.shape[0]
    if len(mask.dims) == y.ndim > 2:  # the result has the moving tile's dimensions
        shape = (rows, *y.shape[1:])
    extent = mask.dims[0] if len(mask.dims) == len(shape) else 1
    over_contraction = extent == contraction != rows
    box = box_of(mask, (contraction, *shape[1:]) if over_contraction else shape)
    if not box:
        return x, y, shape, box
    if over_contraction or (extent == contraction and box[0] in (filled_rows(x), filled_rows(y))):
        x, y = (crop(view, [box[0], *((0, n) for n in view.shape[1:])]) for view in (x, y))
        box = [(0, rows), *box[1:]]
    if box[0] != (0, rows):
        x = crop(_flat(x, rows), [(0, x.shape[0]), box[0]])
    columns = box[1:]
    if len(shape) == 2:
        y = _flat(y, shape[1]) if columns[0] != (0, shape[1]) else y
    if columns != [(0, n) for n in shape[1:]]:
        y = crop(y, [(0, y.shape[0]), *columns])
    return x, y, shape, None if all(pair == (0, n) for pair, n in zip(box, shape, strict=True)) else box


def _flat(view: NkiTensor, columns: int) -> NkiTensor:
    if view.ndim == 2:
        return view
    try:
        return view.reshape((view.shape[0], columns))
    except UnsupportedError as error:
        raise UnimplementedError(
            f"a mask over the columns of a tile of shape {view.shape}", cure="give it the tile's dimensions"
        ) from error
