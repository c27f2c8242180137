"""Output: order, attribution, bounds, and what user code does to its descriptors."""

import base64
import os
import signal
import time

from harness import KernelTest

_SMALL = "application/vnd.belljar.small-picture"


class Output(KernelTest):
    def test_all_ways_to_write_appear_in_order(self):
        run = self.run_ok(
            "import os, subprocess, sys\nprint('one')\nos.write(1, b'two\\n')\nsubprocess.run(['echo', 'three'])\n"
            "sys.stdout.write('four\\n')\nsys.stdout.buffer.write(b'five\\n')\nos.system('echo six')\nprint('seven')"
        )
        self.assertEqual(run.stdout, "one\ntwo\nthree\nfour\nfive\nsix\nseven\n")

    def test_the_streams_keep_their_order(self):
        run = self.run_ok("import sys\nfor i in range(50):\n    print(i, file=sys.stderr if i % 2 else sys.stdout)")
        self.assertEqual(run.both.split(), [str(i) for i in range(50)])
        self.assertEqual({stream for stream, _ in run.output}, {1, 2})

    def test_a_guardian_that_gets_no_time_swaps_nothing(self):
        again = "for i in range(6): print(i, file=sys.stderr if i % 2 else sys.stdout)"
        run = self.kernel.submit(f"import os, sys, time\nprint('up')\nwhile not os.path.exists('go'): time.sleep(0.01)\n{again}")
        self.kernel.wait_for_output(run, "up\n")
        guardian = self.kernel.process.pid
        os.kill(guardian, signal.SIGSTOP)
        try:
            with open(os.path.join(self.kernel.workspace, "go"), "w", encoding="ascii"):
                pass
            time.sleep(0.5)
        finally:
            os.kill(guardian, signal.SIGCONT)
        self.assertEqual(self.kernel.finish(run).both.split(), ["up", "0", "1", "2", "3", "4", "5"])

    def test_a_child_that_never_stops_writing_holds_up_no_print(self):
        alternate = "for i in range(20): print(i, file=sys.stderr if i % 2 else sys.stdout)"
        self.run_ok(f"import subprocess, sys\nchild = subprocess.Popen(['yes'])\n{alternate}\nchild.kill()")

    def test_output_streams_while_the_cell_runs(self):
        run = self.kernel.submit("import time\nprint('first', end='')\ntime.sleep(30)")
        self.kernel.wait_for_output(run, "first")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)

    def test_a_line_that_print_has_returned_from_outlives_a_kill(self):
        for end in ("\\n", ""):
            run = self.kernel.run(f"import os\nfor i in range(500): print(i, 'x', end='{end}')\nos.kill(os.getpid(), 9)")
            self.assertEqual(run.end["type"], "cell_lost")
            self.assertEqual(run.stdout, "".join(f"{i} x" + end.replace("\\n", "\n") for i in range(500)))

    def test_print_is_as_python_has_it(self):
        code = (
            "import io, sys\nclass Bad:\n    def __str__(self): raise KeyError('no')\n"
            "try: print('before', Bad(), 'behind')\nexcept KeyError: pass\n"
            "try: print(1, sep=2)\nexcept TypeError as error: print(error)\n"
            "print(); print(None, end='.', flush=True); print('a', 'b', sep='', file=sys.stderr)\n"
            "text = io.StringIO(); print('elsewhere', file=text)\n"
            "stdout, sys.stdout = sys.stdout, None; print('nowhere'); sys.stdout = stdout\n"
            "import pickle; text.getvalue(), pickle.loads(pickle.dumps(print)) is print"
        )
        run = self.run_ok(code)
        self.assertEqual(run.stdout, "before sep must be None or a string, not int\n\nNone.")
        self.assertEqual((run.stderr, run.value), ("ab\n", "('elsewhere\\n', True)"))

    def test_large_output_arrives_whole_before_the_end(self):
        run = self.run_ok("import sys\nsys.stdout.write('x' * 3_000_000)\nprint('end')")
        self.assertEqual(len(run.stdout), 3_000_004)

    def test_unicode_and_bytes_pass_unchanged(self):
        run = self.run_ok("import os\nprint('中文 ä')\nos.write(1, b'\\xff\\x00')")
        self.assertEqual(b"".join(data for _, data in run.output), "中文 ä\n".encode() + b"\xff\x00")

    def test_output_between_cells_has_no_cell(self):
        self.run_ok(
            "import os, threading, time\n"
            "def speak():\n    while not os.path.exists('go'): time.sleep(0.01)\n    print('from behind')\n"
            "thread = threading.Thread(target=speak); thread.start()"
        )
        with open(os.path.join(self.kernel.workspace, "go"), "w", encoding="ascii"):
            pass
        frame = self.kernel.receive()
        self.assertEqual((frame["type"], frame["cell"]), ("output", 0))
        self.assertTrue(b"from behind\n".startswith(frame["data"]))

    def test_a_closed_descriptor_is_mended_for_the_next_cell(self):
        self.kernel.run("import os\nos.close(1)\nos.close(2)")
        self.assertEqual(self.run_ok("print('back')").stdout, "back\n")

    def test_a_replaced_or_closed_stdout_is_mended_for_the_next_cell(self):
        self.run_ok("import sys, io\nsys.stdout = io.StringIO()\nprint('lost')")
        self.assertEqual(self.run_ok("print('back')").stdout, "back\n")
        self.kernel.run("sys.stdout.close()")
        self.assertEqual(self.run_ok("print('again')").stdout, "again\n")
        self.kernel.run("sys.stdout = None; del sys.stderr")
        self.assertEqual(self.run_ok("print('still')").stdout, "still\n")

    def test_a_redirected_descriptor_holds_for_its_cell(self):
        run = self.run_ok(
            "import os\nf = os.open('out.txt', os.O_CREAT | os.O_WRONLY)\nos.dup2(f, 1)\nprint('to file')"
        )
        self.assertEqual(run.stdout, "")
        self.assertEqual(self.value("open('out.txt').read()"), "'to file\\n'")

    def test_stdout_behaves_like_a_pipe(self):
        self.assertEqual(
            self.value(
                "import sys\nsys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty(), sys.stdout.encoding"
            ),
            "(1, 2, False, 'utf-8')",
        )

    def test_a_background_writer_cannot_delay_the_end_of_a_cell(self):
        self.run_ok(
            "import threading, os\nstop = False\ndef flood():\n    while not stop: os.write(1, b'y' * 1000)\n"
            "threading.Thread(target=flood, daemon=True).start()"
        )
        run = self.run_ok("stop = True\n1")
        self.assertEqual(run.value, "1")


class OutputBounds(KernelTest):
    limits = {"output_bytes": 1000, "output_tail_bytes": 100}

    def test_beyond_the_cap_only_the_last_bytes_come(self):
        run = self.run_ok("import sys\nsys.stdout.write('a' * 5000)\nsys.stderr.write('b' * 40)\nprint('end')")
        kinds = [frame["type"] for frame in run.frames]
        self.assertEqual(kinds, ["output_gap", "cell_done"])
        self.assertEqual(run.stdout, "a" * 1000 + "a" * 56 + "end\n")
        self.assertEqual(run.stderr, "b" * 40)
        gap = run.frames[0]
        self.assertEqual((gap["stdout_bytes"], gap["stderr_bytes"]), (5000 - 1056, 0))
        self.assertEqual(run.both[-44:], "b" * 40 + "end\n")

    def test_the_count_starts_anew_with_each_cell(self):
        self.run_ok("print('x' * 3000)")
        run = self.run_ok("print('y' * 500)")
        self.assertEqual([frame["type"] for frame in run.frames], ["cell_done"])
        self.assertEqual(run.stdout, "y" * 500 + "\n")

    def test_a_lost_cell_has_its_gap_and_tail_too(self):
        run = self.kernel.run("import os\nos.write(1, b'x' * 2000 + b'last words')\nos._exit(3)")
        self.assertEqual([frame["type"] for frame in run.frames], ["output_gap", "cell_lost"])
        self.assertTrue(run.stdout.endswith("last words"))


class Displays(KernelTest):
    limits = {"displays": 3, "display_bytes": 1000, "displays_bytes": 1500}

    def test_display_sends_rich_forms(self):
        run = self.run_ok("class H:\n    def _repr_html_(self): return '<i>'\ndisplay(H(), 5)")
        self.assertEqual(run.displays[0].pop("text/plain")[:12], "<__main__.H ")
        self.assertEqual(run.displays, [{"text/html": "<i>"}, {"text/plain": "5"}])
        self.assertEqual(run.end["displays_dropped"], 0)

    def test_display_stands_in_order_with_output(self):
        run = self.kernel.submit("print('before')\ndisplay(1)")
        kinds = []
        while self.kernel.step(run):
            kinds.append("display" if run.displays else "output")
        self.assertEqual(kinds[0], "output")

    def test_too_many_or_too_large_displays_are_counted(self):
        run = self.run_ok("for i in range(5): display(i)\ndisplay('x' * 2000)")
        self.assertEqual(len(run.displays), 3)
        self.assertEqual(run.end["displays_dropped"], 3)
        run = self.run_ok("for i in range(3): display('x' * 700)")
        self.assertEqual((len(run.displays), run.end["displays_dropped"]), (2, 1))

    def test_forms_of_values_that_are_too_large_are_counted(self):
        self.run_ok("class H:\n    def _repr_html_(self): return 'x' * 2000\n    def _repr_latex_(self): return '$x$'")
        for mode in ("main", "fork"):
            run = self.run_ok("display(H())\nH()", mode=mode)
            self.assertEqual([set(forms) for forms in run.displays], [{"text/plain", "text/latex"}])
            self.assertEqual(run.end["result"]["mime"], {"text/latex": "$x$"})
            self.assertEqual(run.end["displays_dropped"], 2)
        self.assertEqual(self.run_ok("1").end["displays_dropped"], 0)


# Enough of matplotlib to see when figures are drawn, shown and closed.
_PYPLOT = """
import os
_figures = {}
class Figure:
    def __init__(self, number): self.number = number
    def get_children(self): return ['background', 'axes']
    def savefig(self, target, **options):
        data = b'PNG%d' % self.number
        target.write(data) if hasattr(target, 'write') else open(target, 'wb').write(data)
def figure(number=None):
    number = number or max(_figures, default=0) + 1
    return _figures.setdefault(number, Figure(number))
def get_fignums(): return sorted(_figures)
def close(figure): _figures.pop(figure.number, None)
def show(): raise RuntimeError('not wrapped')
"""


class Figures(KernelTest):
    def setUp(self):
        super().setUp()
        self.run_ok(
            f"import os\nos.mkdir('matplotlib')\nopen('matplotlib/__init__.py', 'w')\n"
            f"open('matplotlib/pyplot.py', 'w').write({_PYPLOT!r})"
        )

    def test_open_figures_are_shown_at_the_end_of_the_cell_and_closed(self):
        run = self.run_ok("import matplotlib.pyplot as plt\nplt.figure(); plt.figure()\nx = 1")
        self.assertEqual(run.displays, [{"image/png": "UE5HMQ=="}, {"image/png": "UE5HMg=="}])
        self.assertEqual(self.run_ok("plt.get_fignums()").value, "[]")

    def test_show_shows_at_once_and_only_once(self):
        run = self.run_ok("import matplotlib.pyplot as plt\nplt.figure()\nplt.show()\nprint('after')")
        self.assertEqual(len(run.displays), 1)
        self.assertEqual(run.stdout, "after\n")

    def test_a_saved_and_closed_figure_is_not_shown(self):
        run = self.run_ok("import matplotlib.pyplot as plt\nf = plt.figure()\nf.savefig('a.png')\nplt.close(f)")
        self.assertEqual(run.displays, [])

    def test_figures_of_a_failing_cell_are_shown(self):
        run = self.kernel.run("import matplotlib.pyplot as plt\nplt.figure()\n1/0")
        self.assertEqual(len(run.displays), 1)


# Enough of Pillow to see what is scaled, to what, and when.
_PILLOW = """
import struct
class Image:
    def __init__(self, size): self.size, self.mode = size, 'RGB'
    def thumbnail(self, sides):
        scale = min(1, *(most / side for most, side in zip(sides, self.size)))
        self.size = tuple(int(side * scale) for side in self.size)
    def save(self, target, format, **options):
        fits = self.size[0] < 1024 and format == 'JPEG'
        target.write(f'{format} of {self.size}'.encode() + (b'' if fits else bytes(self.least)))
def open(file):
    image = Image(struct.unpack('>II', file.read()[16:24]))
    image.least = 600_000 if image.size[1] == 77 else 0
    return image
"""
_PICTURE = """
import struct
class Picture:
    def __init__(self, width, height): self.sides = width, height
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR' + struct.pack('>II', *self.sides)
"""


class Pictures(KernelTest):
    def small(self, *sides):
        forms = [{**display} for display in self.run_ok(f"display(Picture{sides})").displays]
        self.assertEqual([set(form) - {_SMALL} for form in forms], [{"image/png", "text/plain"}])
        copy = forms[0].get(_SMALL)
        return copy and base64.b64decode(copy).decode()

    def test_what_is_too_large_for_models_has_a_small_copy_beside_it(self):
        self.run_ok(f"import os\nos.mkdir('PIL')\nopen('PIL/__init__.py', 'w')\nopen('PIL/Image.py', 'w').write({_PILLOW!r})")
        self.run_ok(_PICTURE)
        self.assertEqual(self.small(4096, 2048), "PNG of (1024, 512)")
        self.assertEqual(self.small(4000, 77), "JPEG of (512, 9)")
        for sides in ((2048, 2048), (100_000, 100_000)):
            self.assertIsNone(self.small(*sides))

    def test_a_copy_that_code_brings_itself_is_dropped(self):
        own = {_SMALL: "b3du", "image/png": "cG5n"}
        self.run_ok(f"class Own:\n    def _repr_mimebundle_(self, **_): return {own!r}")
        run = self.run_ok("display(Own())\nOwn()")
        self.assertEqual(set(run.displays[0]), {"image/png", "text/plain"})
        self.assertEqual(set(run.end["result"]["mime"]), {"image/png"})

    def test_a_copy_takes_no_room_from_its_picture(self):
        write = f"import os\nos.mkdir('PIL')\nopen('PIL/__init__.py', 'w')\nopen('PIL/Image.py', 'w').write({_PILLOW!r})\n"
        self.run_ok(write + _PICTURE)
        page = self.kernel.limits["display_bytes"] - 200_000
        page = f"Picture._repr_mimebundle_ = lambda self, **_: {{'application/json': ['a' * {page}]}}"
        copy = "import PIL.Image as I\nI.Image.save = lambda self, target, format, **_: target.write(bytes(180_000))"
        run = self.run_ok(f"{page}\n{copy}\ndisplay(Picture(4096, 2048))")
        self.assertEqual([set(form) for form in run.displays], [{"image/png", "application/json", "text/plain"}])

    def test_a_picture_is_shown_without_its_copy_where_a_cell_has_no_room_for_both(self):
        write = f"import os\nos.mkdir('PIL')\nopen('PIL/__init__.py', 'w')\nopen('PIL/Image.py', 'w').write({_PILLOW!r})\n"
        self.run_ok(write + _PICTURE)
        filled = self.kernel.limits["displays_bytes"] // 2 - 100_000
        self.run_ok(f"class Page:\n    def _repr_html_(self): return 'a' * {filled}")
        copy = "import PIL.Image as I\nI.Image.save = lambda self, target, format, **_: target.write(bytes(300_000))"
        run = self.run_ok(f"{copy}\ndisplay(Page(), Page(), Picture(4096, 2048))")
        self.assertEqual([set(form) - {"text/plain"} for form in run.displays], [{"text/html"}, {"text/html"}, {"image/png"}])

    def test_without_pillow_there_is_none(self):
        self.run_ok(_PICTURE + "import sys\nsys.modules['PIL'] = None")
        self.assertIsNone(self.small(4096, 2048))
