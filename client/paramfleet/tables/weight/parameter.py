"""The weight of an embedding: a parameter that stands for the rows of a table.

The rows are elsewhere: on pservers, in a store of this process, or nowhere yet. The parameter
holds none of them. Its memory is that of the rows and gradients of the step in progress, which
an optimizer sees. Every operation of torch on the parameter comes to ``__torch_function__``,
which reads the rows, writes them, or raises a ``WeightError``:

* reads return the rows 0 to ``num_embeddings`` - 1, or those that are indexed;
* writes set rows; an initializer of a table without rows becomes the table's initializer;
* a term of a loss that reads the whole weight elementwise, such as a regularizer, is computed
  over the rows that the step looks up (``RowTerm``).

Shape legend: N = ``num_embeddings``, D = row width, U = rows of a step, n = ids of a call.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional, init
from typing_extensions import override

from paramfleet.tables.weight.calls import (
    exchanged,
    is_write,
    itself,
    name_of,
    plainly,
    tensors_in,
)
from paramfleet.tables.weight.rows import (
    Rows,
    WeightError,
    begin_with,
    count_of,
    ids_of,
    independent_copy,
    note_lazy_term,
    rows_by_id,
    rows_of_the_step,
    shape_of,
    whole_rows,
    write_rows,
    write_whole,
)
from paramfleet.tables.weight.views import RowGradient, RowView, viewed

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["TableWeight"]


class TableWeight(torch.nn.Parameter):
    """``weight`` of an embedding of ``fleet.nn``, as torch's code sees it: [N, D].

    Made by ``TableWeight.of``.
    """

    table: Any
    """The ``SparseTable``."""
    _gradient: RowGradient | None = None
    _kept: torch.Tensor | None = None
    """Rows whose memory was asked for, [N, D]; it stays where it is."""
    is_lent = False
    """Whether an optimizer steps the rows that are in the parameter's own memory, [U, D]."""

    @classmethod
    def of(cls, table: Rows, like: torch.Tensor, *, learns: bool) -> "TableWeight":
        """Return a weight of a table.

        Args:
            table: Whose rows it stands for.
            like: float [0, D], with the dtype and device that rows are to have.
            learns: Whether rows are trained.
        """
        weight = torch.Tensor._make_subclass(cls, like, learns)  # noqa: SLF001 - how torch makes a parameter of a subclass
        weight.table = table
        return weight

    @property
    def is_trained(self) -> bool:
        """Whether it is the table's own, and not what ``data`` or ``detach()`` returned."""
        return self.table.weight is self

    @property
    def grad(self) -> torch.Tensor | None:
        """Gradient of the step in progress, [N, D], zeros but in its rows; None without any."""
        gradient: torch.Tensor | None = self.table.gradient if self.is_trained else None
        if gradient is None or self.is_lent:
            return gradient
        if self._gradient is None or self._gradient.rows is not gradient:
            self._gradient = RowGradient.of(gradient, self.table)  # the same as long as it is
        return self._gradient

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        self.table.set_gradient(gradient)

    @grad.deleter
    def grad(self) -> None:
        self.table.set_gradient(None)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's may be set, in name
        """Where rows come to."""
        device: torch.device = self.table.device
        return device

    @property
    def requires_grad(self) -> bool:
        """Whether rows that are looked up learn."""
        if self.is_trained:
            learns: bool = self.table.is_trainable
            return learns
        return False

    @requires_grad.setter
    def requires_grad(self, learns: bool) -> None:
        with itself():
            _REQUIRES_GRAD.__set__(self, learns)
        if self.is_trained:
            self.table.is_trainable = learns

    @override
    def requires_grad_(self, requires_grad: bool = True) -> "TableWeight":
        self.requires_grad = requires_grad
        return self

    def set_memory(self, memory: torch.Tensor) -> None:
        """Replace the parameter's own memory; its dtype and device are those of rows."""
        if not memory.is_meta:  # a tensor can't go there and come back
            with itself():
                self.data = memory
        if self.is_trained:
            self.table.note_type(memory)

    @property
    def memory(self) -> torch.Tensor:
        """The parameter's own memory, without its table."""
        with itself():
            return self.data

    @override
    def set_(self, *_: Any) -> Any:
        raise WeightError(
            table=self.table.name,
            operation="set_",
            reason="assign with weight.data = rows, or weight.data.copy_(rows)",
        )

    @override
    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"TableWeight of table {self.table.name!r}, {list(shape_of(self.table))}"

    @override
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not self.is_trained:
            return self._copy()
        copied = cast("TableWeight", independent_copy(self.table, memo).weight)
        memo[id(self)] = copied
        return copied

    def with_memory(self) -> torch.Tensor:
        """Return the rows, [N, D], in memory that lives as long as this object.

        Raises:
            WeightError: if the table has no number of rows, or too many.
        """
        found = self._copy()
        self._kept = found if self._kept is None else self._kept.copy_(found)
        return self._kept

    def _copy(self) -> torch.Tensor:
        """Return a copy of the rows, [N, D].

        Raises:
            WeightError: if the table has no number of rows, or too many.
        """
        with torch.no_grad():
            return whole_rows(self.table, "a copy").clone()

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.is_trained:
            return self._copy().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        raise WeightError(
            table=self.table.name,
            operation="pickle",
            reason="the rows are in a table, not in the parameter; save with "
            "fleet.save_persistables, or torch.save(model.state_dict()), or export for "
            "fleet.serving",
        )

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        weight = next(_weights_in([args, kwargs]), None)
        name = name_of(func)
        is_own = name in _OF_PARAMETER or (name in _LIKE and _is_of_an_optimizer())
        if weight is not None and name in _MEMORY and not weight.is_trained:
            return func(weight.with_memory(), *args[1:], **kwargs)
        if weight is None or weight.is_lent or is_own:
            return plainly(func, args, kwargs)
        if name in _SHAPES and args[0] is weight:
            return _SHAPES[name](weight, *args[1:], **kwargs)
        if func in _INITIALIZERS:
            return _INITIALIZERS[func](*args, **kwargs)
        _check_operation(weight, name)
        act: Callable[..., Any]
        if isinstance(kwargs.get("out"), TableWeight):
            act = _write_out
        elif is_write(name):
            act = _write if isinstance(args[0], TableWeight) else _write_each
        else:
            act = _data if name in {"data", "detach"} else _read
        return act(func, name, args, kwargs)


class RowTerm(torch.Tensor):
    """Part of a loss that was computed elementwise, or row by row, from a whole weight.

    Its sum, or its mean over all N rows, is taken over the rows of the step's lookups, with a
    gradient: this is how sparse tables are regularized. Other operations use all N rows.
    """

    weight: TableWeight
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None
    """Of which it is the result; its arguments have the weight, or terms of it. None for the
    weight itself."""

    @classmethod
    def of(
        cls,
        weight: TableWeight,
        call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None,
    ) -> "RowTerm":
        """Return what a call makes of a weight's rows."""
        term = torch.Tensor._make_subclass(cls, torch.empty(0), False)  # noqa: FBT003, SLF001 - as above
        term.weight, term.call = weight, call
        return term

    def over(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what it is for some rows [rows, D]: [rows, ...]."""
        if self.call is None:
            return rows
        func, args, kwargs = self.call
        parts = {
            id(each): each.over(rows) if isinstance(each, RowTerm) else rows
            for each in tensors_in([args, kwargs])
            if isinstance(each, (RowTerm, TableWeight))
        }
        return cast("torch.Tensor", func(*exchanged(args, parts), **exchanged(kwargs, parts)))

    @override
    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"RowTerm of {self.weight!r}"

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        terms = [each for each in tensors_in([args, kwargs]) if isinstance(each, RowTerm)]
        first = terms[0]
        found = _term_of(first.weight, func, args, kwargs)
        if found is not None:
            return found
        if name in _SUMS and len(terms) == 1 and _is_full(name, args, kwargs):
            return _lazy_sum(first, func, name, args, kwargs)
        whole = {id(term): term.over(whole_rows(term.weight.table, name)) for term in terms}
        return func(*exchanged(args, whole), **exchanged(kwargs, whole))


_REQUIRES_GRAD: Any = torch.Tensor.requires_grad
_OF_PARAMETER = frozenset(
    {
        "requires_grad", "requires_grad_", "dtype", "layout", "is_leaf", "grad_fn",
        "is_cuda", "is_cpu", "is_meta", "device", "is_sparse", "is_sparse_csr", "is_quantized",
        "is_mps", "is_xpu", "is_mkldnn", "is_nested", "is_inference", "is_floating_point",
        "is_complex",
        "is_signed", "is_neg", "is_conj", "dim", "ndim", "ndimension", "_version", "output_nr",
        "retains_grad", "element_size", "itemsize", "get_device", "name", "names",
        "has_names", "is_contiguous", "is_shared", "is_pinned", "_backward_hooks",
        "_post_accumulate_grad_hooks", "data_ptr", "untyped_storage", "_base", "_is_view",
        "is_xla", "is_ipu", "is_maia", "is_vulkan", "_grad", "is_ort", "is_mtia", "is_hpu",
        "_has_compatible_shallow_copy_type", "grad_dtype",
    }
)  # fmt: skip
"""What is asked of the parameter itself, not of rows."""

_MEMORY = frozenset({"data_ptr", "untyped_storage", "storage", "storage_offset"})
"""Functions whose callers read memory for themselves, as formats of files do."""

_LIKE = frozenset({"zeros_like", "empty_like", "ones_like", "full_like"})
"""What optimizers make states with; a table's are made beside its rows."""

_HOOK = (
    "autograd doesn't reach the weight; change weight.grad between backward() and step(), "
    "or hook the output of the embedding"
)
_REFUSED = {
    "register_hook": _HOOK,
    "register_post_accumulate_grad_hook": _HOOK,
    "retain_grad": _HOOK,
    "resize_": "a table grows by its ids",
    "resize_as_": "a table grows by its ids",
    "backward": "autograd doesn't reach the weight; leave inputs= out of backward()",
    "share_memory_": "the rows are in a table, which every worker of a job shares",
    "grad": "autograd doesn't reach the weight; differentiate by the embedding's output",
}

_SUMS = frozenset({"sum", "mean"})
_BY_ROW = frozenset({*_SUMS, "norm", "linalg_norm", "linalg_vector_norm"})
"""Operations that reduce each row by itself, where they go over dimension 1."""

_ELEMENTWISE = frozenset(
    {
        "square", "pow", "__pow__", "abs", "absolute", "__abs__", "mul", "__mul__", "__rmul__",
        "multiply", "div", "__truediv__", "true_divide", "divide", "neg", "__neg__", "exp",
        "log", "log1p", "sqrt", "rsqrt", "sigmoid", "tanh", "relu", "add", "__add__", "sub",
        "__radd__", "__sub__", "clamp", "clip", "clamp_min", "clamp_max", "softplus", "float",
        "double", "half", "to", "clone", "contiguous", "sign",
    }
)  # fmt: skip
"""Operations of which each value depends on a value of the same row and place."""


def _check_operation(weight: TableWeight, name: str) -> None:
    """Check that an operation has a meaning for rows that are elsewhere.

    Raises:
        WeightError: with what to do instead.
    """
    reason = _REFUSED.get(name)
    if reason is not None:
        raise WeightError(table=weight.table.name, operation=name, reason=reason)


def _data(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TableWeight | None:
    """Return the rows as ``data`` and ``detach()`` do, or set them."""
    del func, name, kwargs
    weight = args[0]
    if len(args) > 1:
        _assign(weight, args[1])
        return None
    return TableWeight.of(weight.table, weight.memory, learns=False)


def _is_of_an_optimizer() -> bool:
    """Return whether torch's optimizers call: they make states of parameters by ``*_like``."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - nothing else tells who calls
    while frame is not None and frame.f_globals.get("__name__") in {__name__, "torch._tensor"}:
        frame = frame.f_back
    caller = "" if frame is None else str(frame.f_globals.get("__name__"))
    return caller.startswith("torch.optim")


def _weights_in(given: Any) -> Iterator[TableWeight]:
    return (each for each in tensors_in(given) if isinstance(each, TableWeight))


def _dimensions(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return over which dimensions a reduction goes; None for all."""
    place = 1 if name in _SUMS else 2
    given = args[place] if len(args) > place else kwargs.get("dim")
    return None if isinstance(given, torch.dtype) else given


def _is_full(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a reduction goes over all dimensions."""
    return _dimensions(name, args, kwargs) in (None, (), [])


def _term_of(
    weight: TableWeight,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> RowTerm | None:
    """Return the result as a term, if each row of it depends on the same row of the weight."""
    name, dim = name_of(func), shape_of(weight.table)[1]
    for each in tensors_in([args, kwargs]):
        own = each.weight if isinstance(each, RowTerm) else each
        if own is not weight and (
            isinstance(each, (RowTerm, TableWeight))
            or each.dim() > 1
            or each.numel() not in {1, dim}
        ):
            return None
    if name in _BY_ROW:
        dims = _dimensions(name, args, kwargs)
        dims = tuple(dims) if isinstance(dims, (list, tuple)) else (dims,)
        if dims not in {(1,), (-1,)}:
            return None
    elif name not in _ELEMENTWISE:
        return None
    return RowTerm.of(weight, (func, args, kwargs))


def _lazy_sum(
    term: RowTerm,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Return a sum, or a mean over all N rows, that has those of the step's lookups alone.

    Raises:
        WeightError: if no row was looked up since the last step, or a mean has no denominator.
    """
    table = term.weight.table
    values = term.over(rows_of_the_step(table, name))
    note_lazy_term(table)
    if name == "sum":
        return cast("torch.Tensor", func(*exchanged(args, {id(term): values}), **kwargs))
    each = values[0].numel() if len(values) else 1
    return values.sum() / (count_of(table, "a mean") * each)


def _read(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return what a function makes of the rows."""
    weights = {id(each): each for each in _weights_in([args, kwargs])}
    first = next(iter(weights.values()))
    table = first.table
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in weights.values())
    with torch.set_grad_enabled(learns):
        looked_up = _looked_up(func, name, args, kwargs)
    if looked_up is not None:
        return looked_up
    if learns and len(weights) == 1 and first.is_trained:
        term = _term_of(first, func, args, kwargs)
        if term is not None:
            return term
        if name in _SUMS and _is_full(name, args, kwargs):
            itself = RowTerm.of(first, None)
            return _lazy_sum(itself, func, name, exchanged(args, {id(first): itself}), kwargs)
    with torch.set_grad_enabled(learns):
        whole = {key: whole_rows(each.table, name) for key, each in weights.items()}
    result = func(*exchanged(args, whole), **exchanged(kwargs, whole))
    rows = whole[id(first)]
    if isinstance(result, Iterator):
        return iter(viewed(rows.unbind(0), rows, table, ids_of(table)))
    return viewed(result, rows, table, ids_of(table))


def _looked_up(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """Return rows that an index, or a lookup of torch's, names; None for other functions."""
    if name == "__getitem__" and isinstance(args[0], TableWeight):
        table, index = args[0].table, args[1]
        ids = _ids_of(args[0], index)
        if ids is None:
            return None
        rows = rows_by_id(table, ids, from_end=True)
        is_copy = isinstance(index, (list, torch.Tensor))
        return rows if is_copy else RowView.of(rows, rows, table, ids)
    if name == "index_select" and len(args) == 3 and args[1] == 0:
        return rows_by_id(cast("TableWeight", args[0]).table, args[2])
    if func is functional.embedding and isinstance(args[1], TableWeight):
        plain = {"input", "weight", "padding_idx", "sparse", "norm_type"}
        named = dict(zip(("padding_idx", "max_norm"), args[2:], strict=False)) | kwargs
        if not any(named.get(key) for key in named if key not in plain):
            rows = rows_by_id(args[1].table, args[0])
            padding = named.get("padding_idx")
            if padding is None:
                return rows
            return torch.where((args[0] == padding).unsqueeze(-1), rows.detach(), rows)
    return None


def _ids_of(weight: TableWeight, index: Any) -> torch.Tensor | None:
    """Return ids that an index names; None if it is of another kind."""
    if isinstance(index, bool):
        return None
    if isinstance(index, int):
        return torch.tensor(index)
    if isinstance(index, slice):
        ids = range(count_of(weight.table, "a slice"))[index]
        return torch.arange(ids.start, ids.stop, ids.step) if len(ids) else torch.arange(0)
    if isinstance(index, list) and index and all(type(each) is int for each in index):
        return torch.tensor(index)
    is_ids = isinstance(index, torch.Tensor) and index.dtype in {torch.int64, torch.int32}
    return index if is_ids else None


def _write(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Change rows as a function in place changes its tensor; return the weight.

    Raises:
        RuntimeError: as torch's parameters: one that is trained isn't changed under autograd.
        WeightError: if the table has no fixed number of rows, or too many.
    """
    weight = cast("TableWeight", args[0])
    table = weight.table
    if torch.is_grad_enabled() and weight.requires_grad:
        message = "a leaf Variable that requires grad is being used in an in-place operation."
        raise RuntimeError(message)
    if table.gradient is not None and not table.is_stepped and _has_matrix(args[1:], kwargs):
        reason = (
            "the gradient of a step has its rows alone: let fleet.distributed_optimizer(...) "
            "step them, or drop the gradient first"
        )
        raise WeightError(table=table.name, operation=name, reason=reason)
    if name in _FILLS and not table.in_use:
        _FILLS[name](table, *args[1:], **kwargs)
        return weight
    with torch.no_grad():
        if name == "copy_" and not table.num_embeddings:
            _assign(weight, args[1])
            return weight
        if name == "__setitem__" and (ids := _ids_of(weight, args[1])) is not None:
            values = torch.as_tensor(_plain(args[2], name), dtype=weight.dtype)
            write_rows(table, ids, values.expand(*ids.shape, shape_of(table)[1]))
            return None
        if name == "copy_":
            _assign(weight, torch.broadcast_to(_plain(args[1], name), shape_of(table)))
            return weight
        before = whole_rows(table, name)
        rows = before.clone()
        others = {id(each): whole_rows(each.table, name) for each in _weights_in(args)}
        func(rows, *exchanged(args[1:], others), **exchanged(kwargs, others))
        ids = (rows != before).any(1).nonzero().flatten()  # others may have changed the rest
        write_rows(table, ids, rows[ids])
    return weight


def _has_matrix(args: Any, kwargs: Any) -> bool:
    return any(each.dim() > 1 for each in tensors_in([args, kwargs]))


def _write_each(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Change rows of weights in a list, as ``torch._foreach_add_`` changes tensors.

    Where the first argument is another tensor, that is changed by what is read of weights.
    """
    if isinstance(args[0], torch.Tensor):
        return _read(func, name, args, kwargs)
    weights = {id(each): each for each in _weights_in([args, kwargs])}
    with torch.no_grad():
        whole = {key: whole_rows(each.table, name).clone() for key, each in weights.items()}
        returned = func(*exchanged(args, whole), **exchanged(kwargs, whole))
        for each in _weights_in(args[0]):
            write_whole(each.table, whole[id(each)])
    return returned


def _write_out(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TableWeight:
    """Write rows as a function writes its result to ``out``."""
    del name
    weight = cast("TableWeight", kwargs["out"])
    rows = torch.empty(shape_of(weight.table), dtype=weight.dtype, device=weight.device)
    func(*args, **(kwargs | {"out": rows}))
    _assign(weight, rows)
    return weight


def _plain(given: Any, operation: str) -> Any:
    return whole_rows(given.table, operation) if isinstance(given, TableWeight) else given


def _assign(weight: TableWeight, values: torch.Tensor) -> None:
    """Write rows 0, 1, ... as ``weight.data = values`` does, [M, D].

    Raises:
        WeightError: if the values have another shape than the weight.
    """
    table, values = weight.table, _plain(values, "data")
    shape = (table.num_embeddings or len(values), shape_of(table)[1])
    if values.shape != shape:
        reason = f"the values have shape {list(values.shape)}, and the weight {list(shape)}"
        raise WeightError(table=table.name, operation="an assignment", reason=reason)
    write_whole(table, values)


def _normal(table: Rows, mean: float = 0.0, std: float = 1.0, **_: Any) -> None:
    begin_with(table, "normal", mean=float(mean), std=float(std))


def _uniform(table: Rows, *bounds: float, **named: Any) -> None:
    low, high = (*bounds, *(0.0, 1.0)[len(bounds) :])
    low, high = float(named.get("from", low)), float(named.get("to", high))
    begin_with(table, "uniform", low=low, high=high)


def _fill(table: Rows, value: float | torch.Tensor) -> None:
    begin_with(table, "constant", value=float(value))


def _zero(table: Rows) -> None:
    begin_with(table, "constant", value=0.0)


_FILLS: dict[str, Callable[..., None]] = {
    "normal_": _normal,
    "uniform_": _uniform,
    "fill_": _fill,
    "zero_": _zero,
}
"""What a table without rows takes as its initializer."""


def _kaiming(
    tensor: TableWeight,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> TableWeight:
    del generator
    fan = init._calculate_correct_fan(tensor, mode)  # type: ignore[arg-type]  # noqa: SLF001 - torch's own arithmetic
    gain = init.calculate_gain(nonlinearity, a)  # type: ignore[arg-type]  # torch checks it
    bound: float = (3.0**0.5) * gain / fan**0.5
    with torch.no_grad():
        return cast("TableWeight", tensor.uniform_(-bound, bound))


def _filling(name: str) -> Callable[..., Any]:
    def fill(tensor: TableWeight, *numbers: float, **named: Any) -> Any:
        named.pop("generator", None)
        keys = {"a": 0, "b": 1, "mean": 0, "std": 1, "val": 0}
        given = dict(enumerate(numbers)) | {keys[key]: value for key, value in named.items()}
        with torch.no_grad():
            return getattr(tensor, name)(*(given[key] for key in sorted(given)))

    return fill


_INITIALIZERS: dict[Callable[..., Any], Callable[..., Any]] = {
    init.normal_: _filling("normal_"),
    init.uniform_: _filling("uniform_"),
    init.constant_: _filling("fill_"),
    init.kaiming_uniform_: _kaiming,
}
"""Of ``torch.nn.init``, those that ask ``__torch_function__`` themselves."""


def _shape(weight: TableWeight) -> torch.Size:
    return shape_of(weight.table)


def _size(weight: TableWeight, dim: int | None = None) -> Any:
    if dim is None:
        return _shape(weight)
    if dim in {0, -2}:
        return count_of(weight.table, "size(0)")
    return _shape(weight)[dim]


def _numel(weight: TableWeight) -> int:
    return _shape(weight).numel()


def _length(weight: TableWeight) -> int:
    return count_of(weight.table, "len()")


def _stride(weight: TableWeight, dim: int | None = None) -> Any:
    strides = (shape_of(weight.table)[1], 1)
    return strides if dim is None else strides[dim]


_SHAPES: dict[str, Callable[..., Any]] = {
    "shape": _shape,
    "size": _size,
    "numel": _numel,
    "nelement": _numel,
    "__len__": _length,
    "stride": _stride,
}
