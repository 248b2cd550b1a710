"""Runs AArch64 kernels and saved networks on this machine, under qemu's user-mode emulation.

In: kernel images of an Arm target with arrays by parameter name, or the folder of a saved network.
Out: outputs by name. All kernels of a call are linked into one static program with the pool of
threads; buffers lie between guard pages, inputs are read-only, outputs begin as NaN. Times of an
emulated machine mean nothing. `needs_emulator` skips tests where qemu or the cross compiler is
missing (Debian: qemu-user-static, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross).
"""

import re
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.kernel import derive
from ansorlite.codegen.threads import threads_ir
from ansorlite.graph.deploy import SYMBOL, entry
from ansorlite.manifest import LIBRARY, WEIGHTS, read_metadata
from ansorlite.target import Target

Arrays = Mapping[str, Any]
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
GCC = shutil.which("aarch64-linux-gnu-gcc")
SYSROOT = Path("/usr/aarch64-linux-gnu")
LIMIT_S = 240
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")
LINE = re.compile(r"^\s+[0-9a-f]+:\s+[0-9a-f]{8}\s+(\S+)\s*(.*)$")
PLACE = re.compile(r"[0-9a-f]+ <[^>]*>")
missing = [
    name
    for name, found in (("qemu-aarch64-static", QEMU), ("aarch64-linux-gnu-gcc", GCC))
    if not found
]
needs_emulator = pytest.mark.skipif(
    bool(missing), reason=f"no {' and no '.join(missing)}: see .ci/run for the packages"
)

RUNNER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

DECLARED
static void (*const kernels[])(void **) = {KERNELS};
extern void ansorlite_set_threads(long long);
extern void ansorlite_stop_threads(void);

enum { READ, WRITE, SPACE };
#define PAGE 65536ll

/* Memory that ends at a guard page, or up to `align` - 1 bytes before; another one is in front. */
static char *guarded(long long bytes, long long align, char **from, long long *whole) {
  long long pages = (bytes + align + PAGE - 1) / PAGE * PAGE;
  char *at = mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || mprotect(at + PAGE, pages, PROT_READ | PROT_WRITE)) exit(90);
  *from = at + PAGE;
  *whole = pages;
  return at + PAGE + (pages - bytes) / align * align;
}

int main(int argc, char **argv) {
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (!in || !out || argc < 4) return 91;
  ansorlite_set_threads(atoi(argv[3]));
  for (unsigned k = 0; k < sizeof kernels / sizeof *kernels; k++) {
    long long n, head[3];
    if (fread(&n, 8, 1, in) != 1 || n > 64) return 92;
    char *memory[64], *from[64];
    long long size[64], whole[64], role[64];
    for (int p = 0; p < n; p++) {
      if (fread(head, 8, 3, in) != 3) return 93;
      size[p] = head[0], role[p] = head[1];
      memory[p] = guarded(head[0], head[2], from + p, whole + p);
      memset(from[p], 0xff, whole[p]);
      if (role[p] == READ) {
        if (fread(memory[p], 1, size[p], in) != (size_t)size[p]) return 94;
        if (mprotect(from[p], whole[p], PROT_READ)) return 95;
      }
    }
    kernels[k]((void **)memory);
    for (int p = 0; p < n; p++) {
      if (role[p] == WRITE) fwrite(memory[p], 1, size[p], out);
      munmap(from[p] - PAGE, whole[p] + 2 * PAGE);
    }
  }
  ansorlite_stop_threads();
  return fclose(out) ? 96 : 0;
}
"""

NETWORK = r"""
#include <stdio.h>
#include <stdlib.h>
#include "network.h"

static void *read_all(FILE *file, long long bytes) {
  void *at = malloc(bytes ? bytes : 1);
  if (fread(at, 1, bytes, file) != (size_t)bytes) exit(94);
  return at;
}

int main(int argc, char **argv) {
  const char *why = "";
  network *net = network_open(argv[1], &why);
  if (!net) { fprintf(stderr, "refused: %s\n", why); return 80; }
  network_set_threads(atoi(argv[4]));
  const network_value *in, *out;
  int n_in = network_inputs(&in), n_out = network_outputs(&out);
  FILE *from = fopen(argv[2], "rb"), *to = fopen(argv[3], "wb");
  if (!from || !to || argc < 5) return 91;
  const void *inputs[64];
  void *outputs[64];
  for (int k = 0; k < n_in; k++) inputs[k] = read_all(from, in[k].bytes);
  for (int k = 0; k < n_out; k++) outputs[k] = malloc(out[k].bytes + 1);
  for (int again = 0; again < 2; again++)
    if (network_run(net, inputs, outputs)) { fprintf(stderr, "%s\n", network_why(net)); return 81; }
  for (int k = 0; k < n_out; k++) fwrite(outputs[k], 1, out[k].bytes, to);
  network_close(net);
  return fclose(to) ? 96 : 0;
}
"""


def run_kernels(
    cases: Sequence[tuple[KernelImage, Arrays]], folder: Path, cpu: str = "max", threads: int = 2
) -> list[dict[str, Any]]:
    """Outputs by name of each kernel on its arrays, all in one emulated process.

    `cpu` is qemu's name of the processor. Fails where the program ends with a signal.
    """
    objects, data = [], []
    for k, (image, arrays) in enumerate(cases):
        code = image.object_bytes.replace(image.symbol.encode(), entry(k).encode())
        assert image.symbol == SYMBOL
        objects.append(folder / f"kernel{k}.o")
        objects[-1].write_bytes(code)
        data.append(_packed(image, arrays))
    names = [entry(k) for k in range(len(cases))]
    source = RUNNER.replace("DECLARED", "\n".join(f"extern void {n}(void **);" for n in names))
    (folder / "runner.c").write_text(source.replace("KERNELS", ", ".join(names)))
    pool = folder / "threads.o"
    target = Target.cross("cortex-a53")  # runs on all of them
    pool.write_bytes(compile_module(threads_ir(target), target))
    (folder / "in").write_bytes(b"".join(data))
    program = folder / "runner"
    link = [GCC, "-O1", "-static", "-o", program, folder / "runner.c", *objects, pool, "-lm"]
    done(link)
    done([QEMU, "-cpu", cpu, program, folder / "in", folder / "out", str(threads)])
    return _unpacked([image for image, _ in cases], (folder / "out").read_bytes())


def run_network(
    saved: Path, inputs: Sequence[Any], cpu: str = "max", threads: int = 2
) -> list[Any]:
    """Outputs of a saved network, by a C program that is linked with its library."""
    work = saved.parent / f"{saved.name}-run"
    work.mkdir(exist_ok=True)
    (work / "main.c").write_text(NETWORK)
    (work / "in").write_bytes(b"".join(np.ascontiguousarray(x).tobytes() for x in inputs))
    link = [GCC, "-O1", "-o", work / "main", work / "main.c", f"-I{saved}", saved / LIBRARY]
    done([*link, f"-Wl,-rpath,{saved}"])
    command = [QEMU, "-L", SYSROOT, "-cpu", cpu, work / "main", saved / WEIGHTS, work / "in"]
    done([*command, work / "out", str(threads)])
    told, at, outputs = (work / "out").read_bytes(), 0, []
    for v in read_metadata(saved)["outputs"]:
        x = np.frombuffer(told[at : at + v["bytes"]], v["dtype"]).reshape(v["shape"])
        outputs.append(x)
        at += v["bytes"]
    assert at == len(told)
    return outputs


def run_python(userland: Path, code: str, *arguments: Any) -> str:
    """What Python code says in an Arm user land (see scripts/arm_userland.sh)."""
    libraries = userland / "usr/lib/aarch64-linux-gnu"
    parts = (libraries, libraries / "blas", libraries / "lapack")
    settings = {
        "PYTHONHOME": userland / "usr",
        "PYTHONPATH": f"{userland}/usr/lib/python3/dist-packages:{Path(__file__).parents[1]}",
        "LD_LIBRARY_PATH": ":".join(map(str, parts)),
    }
    given = [x for name, value in settings.items() for x in ("-E", f"{name}={value}")]
    python = userland / "usr/bin/python3.11"
    return done([QEMU, "-L", userland, *given, python, "-c", code, *arguments])


def later_instructions(library: Path, folder: Path) -> list[str]:
    """Instructions of a library that an assembler of ARMv8.0 refuses; places are left out."""
    found = done([OBJDUMP, "-d", library])
    matches = (m for m in map(LINE.match, found.splitlines()) if m)
    distinct = {f"{m[1]} {PLACE.sub('.', m[2].split('//')[0])}" for m in matches}
    lines = sorted(x for x in distinct if not x.startswith((".inst", "udf")))
    assert len(lines) > 80
    source = folder / "listing.s"
    source.write_text("\n".join(lines) + "\n")
    command = [GCC, "-march=armv8-a", "-c", source, "-o", folder / "listing.o"]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    refused = re.findall(r"listing\.s:(\d+): Error: (.*)", ran.stderr)
    assert ran.returncode == 0 or refused, ran.stderr
    return [f"{lines[int(n) - 1]}: {why}" for n, why in refused]


def done(command: Sequence[Any]) -> str:
    """What a command says; fails with all of that where it ends otherwise than with status 0."""
    ran = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, f"status {ran.returncode}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def _packed(image: KernelImage, arrays: Arrays) -> bytes:
    """The parameters of a call as the runner reads them: bytes, role, alignment, content."""
    if image.bound is not None:
        arrays = {**arrays, **derive(image.bound, Target.detect(), arrays)}
    parts = [struct.pack("<q", len(image.params))]
    for p in image.params:
        align = 64 if p.packed else np.dtype(p.dtype).itemsize
        role = {"output": 1, "workspace": 2}.get(p.role, 0)
        parts.append(struct.pack("<qqq", p.nbytes, role, align))
        if role == 0:
            x = np.ascontiguousarray(arrays[p.name])
            x = p.layout.pack(x) if p.layout else x
            assert x.nbytes == p.nbytes and str(x.dtype) == p.dtype, p
            parts.append(np.ascontiguousarray(x).tobytes())
    return b"".join(parts)


def _unpacked(images: Sequence[KernelImage], told: bytes) -> list[dict[str, Any]]:
    out, at = [], 0
    for image in images:
        found = {}
        for p in image.params:
            if p.role == "output":
                assert p.layout is None
                raw = np.frombuffer(told[at : at + p.nbytes], p.dtype)
                found[p.name] = raw.reshape(p.shape).copy()
                at += p.nbytes
        out.append(found)
    assert at == len(told), "the runner wrote another number of bytes"
    return out
