"""LLVM IR text -> object bytes, optimised IR or assembly, for any target.

In: the text of one module and a `Target`, which need not be the host. Out: bytes of a relocatable
object (position-independent, small code model), which the loader links and deployment writes; or
text. Each call leaks about 95 KiB inside LLVM, so replace a process after a thousand calls. LLVM
aborts the process on some IR that passes the verifier: compile untrusted IR in a child process.
"""

from functools import cache, lru_cache
from typing import Literal

import llvmlite.binding as llvm

from ansorlite.errors import BuildError
from ansorlite.target import Target

Passes = Literal["few", "all"]
# Enough for code that is already emitted in good order: registers for stack slots, fewer blocks,
# simpler instructions. The other passes of O2 took more time than these and the emitter together.
FEW = ("sroa", "simplify_cfg", "instruction_combine")


def compile_module(
    module_ir: str, target: Target, *, passes: Passes = "all", vectorize: bool = False
) -> bytes:
    """Object bytes of a module, after all passes of LLVM's O2 pipeline or the passes `FEW`.

    `vectorize` enables LLVM's loop and SLP vectorisers (with all passes); the emitter writes
    vectors explicitly, so they are off. Raises BuildError where the IR does not parse or verify, or
    where LLVM does not know the target.
    """
    module, machine = _optimize(module_ir, target, passes, vectorize)
    try:
        return bytes(machine.emit_object(module))
    except RuntimeError as error:
        raise BuildError(f"no object code for {target.cpu} ({target.triple}): {error}") from error


def compile_shown(module_ir: str, target: Target, *, passes: Passes = "all") -> tuple[bytes, str]:
    """(object bytes, assembly text) of one module, as `compile_module` and `assembly` give them."""
    module, machine = _optimize(module_ir, target, passes, False)
    twin = module.clone()  # emitting code changes a module
    try:
        return bytes(machine.emit_object(module)), str(machine.emit_assembly(twin))
    except RuntimeError as error:
        raise BuildError(f"no object code for {target.cpu} ({target.triple}): {error}") from error


def optimized_ir(
    module_ir: str, target: Target, *, passes: Passes = "all", vectorize: bool = False
) -> str:
    """The module's IR text after the passes of `compile_module`."""
    module, _ = _optimize(module_ir, target, passes, vectorize)
    return str(module)


def assembly(
    module_ir: str, target: Target, *, passes: Passes = "all", vectorize: bool = False
) -> str:
    """Assembly text of the code that `compile_module` emits."""
    module, machine = _optimize(module_ir, target, passes, vectorize)
    return str(machine.emit_assembly(module))


def data_layout(target: Target) -> str:
    """LLVM's data layout string of a target."""
    return _machine(target)[1]


def _optimize(
    module_ir: str, target: Target, passes: Passes, vectorize: bool
) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    machine, layout = _machine(target)
    module = _parse(module_ir)
    module.triple = target.triple
    module.data_layout = layout
    # The schedule decides about unrolling. LLVM's own unrolling made builds five times slower and
    # no kernel faster; optimisation level 3 made no kernel faster either.
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = vectorize
    options.slp_vectorization = vectorize
    options.loop_unrolling = False
    # Pass builder and managers are single-use: a manager that runs twice aborts the process.
    builder = llvm.create_pass_builder(machine, options)
    if passes == "all":
        builder.getModulePassManager().run(module, builder)
        return module, machine
    manager = llvm.create_new_module_pass_manager()
    for name in FEW:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
    return module, machine


def _parse(module_ir: str) -> llvm.ModuleRef:
    """The verified module, in a new context, so that its types are freed with the module."""
    try:
        module = llvm.parse_assembly(module_ir, context=llvm.create_context())
    except RuntimeError as error:
        raise BuildError(f"LLVM IR does not parse: {error}") from error
    try:
        module.verify()
    except RuntimeError as error:
        raise BuildError(f"LLVM IR of module {module.name} is not legal: {error}") from error
    return module


@lru_cache(maxsize=8)
def _machine(target: Target) -> tuple[llvm.TargetMachine, str]:
    """LLVM's machine of a target, which serves all modules, and its data layout."""
    _initialize()
    try:
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
        )
    except RuntimeError as error:
        raise BuildError(f"this LLVM has no target {target.triple}: {error}") from error
    return machine, str(machine.target_data)


def new_jit() -> llvm.LLJIT:
    """A JIT for this process; its linker keeps one object's sections within relocation range."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


@cache
def _initialize() -> None:
    if llvm.llvm_version_info[0] >= 22:
        # LLVM 22's recognition of CRC loops takes time exponential in the length of a chain of
        # selects, for example an unrolled maximum.
        llvm.set_option("", "-disable-loop-idiom-hashrecognize")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
