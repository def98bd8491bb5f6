"""A conversation with `lathe run` on a terminal, as a person has it."""

import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import termios
import time
import unittest

from support import LATHE, STORE, created


class Talk:
    """lathe on a pseudo-terminal."""

    def __init__(self, name):
        self.terminal, other = pty.openpty()
        home = tempfile.mkdtemp(prefix="lathe-talk-")
        environment = {**os.environ, "HOME": home, "XDG_DATA_HOME": home, "TERM": "xterm"}
        self.child = subprocess.Popen(
            [LATHE, "run", name, "--store", STORE, "--temperature", "0"],
            stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(other)
        self.history = home
        self.unread = ""
        self.read_to(">>> ")

    def read_to(self, mark, seconds=120):
        """What was shown up to a mark, without the escapes of the line editor. What follows the mark
        is kept for the next time."""
        text, end = self.unread, time.monotonic() + seconds
        while mark not in text:
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {mark!r} in {text!r}")
            try:
                data = os.read(self.terminal, 4096)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"ended before {mark!r}: {text!r}")
            text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        shown, _, self.unread = text.partition(mark)
        return shown + mark

    def type(self, line):
        os.write(self.terminal, line.encode() + b"\r")

    def ask(self, line):
        """Types a line, and gives what was shown until the next prompt."""
        self.type(line)
        self.read_to("\n")
        return self.read_to(">>> ")


class TestTalk(unittest.TestCase):
    def setUp(self):
        self.talk = Talk(created("int8"))
        self.addCleanup(self.end)

    def end(self):
        if self.talk.child.poll() is None:
            self.talk.child.kill()
        self.talk.child.wait()
        os.close(self.talk.terminal)

    def test_a_conversation(self):
        talk = self.talk
        talk.ask("/set num_predict 40")
        self.assertIn("Paris", talk.ask("What is the capital of France?"))
        # The second question is understood from the first.
        self.assertIn("Paris", talk.ask("/show messages"))
        self.assertRegex(talk.ask("/show"), r"num_predict +40")
        self.assertIn("decode", talk.ask("/set verbose") + talk.ask("Say hello."))
        self.assertIn("no command", talk.ask("/nonsense"))
        self.assertIn("no parameter", talk.ask("/set temprature 1"))
        self.assertIn("forgotten", talk.ask("/clear"))
        self.assertNotIn("Paris", talk.ask("/show messages"))
        talk.type('"""What is the capital')
        talk.read_to("... ")
        self.assertIn("Paris", talk.ask('of France?"""'))
        talk.type("/bye")
        self.assertEqual(talk.child.wait(30), 0)
        with open(os.path.join(talk.history, "lathe/run-history")) as history:
            self.assertIn("What is the capital of France?", history.read())

    def test_ctrl_c_ends_an_answer_and_not_the_program(self):
        talk = self.talk
        talk.type("Write a very long story about a dragon, a castle and a hundred knights.")
        talk.read_to("\n")
        time.sleep(3)
        os.killpg(os.getpgid(talk.child.pid), signal.SIGINT)
        talk.read_to(">>> ", 30)
        self.assertIsNone(talk.child.poll())
        self.assertIn("temperature", talk.ask("/show"))

    def test_what_is_no_text_is_forgotten_and_the_conversation_is_not(self):
        talk = self.talk
        talk.ask("/set num_predict 3")
        os.write(talk.terminal, b"caf\xe9 \xff\xfe\r")
        talk.read_to("UTF-8")
        talk.read_to(">>> ")
        self.assertRegex(talk.ask("/show"), r"num_predict +3")

    def test_lines_that_arrive_together_are_all_answered(self):
        # As a terminal without bracketed paste gives what is pasted.
        talk = self.talk
        talk.ask("/set num_predict 3")
        os.write(talk.terminal, b"Say one.\rSay two.\r/show messages\r")
        shown = "".join(talk.read_to(">>> ") for _ in range(3))
        for line in ("user: Say one.", "user: Say two."):
            self.assertIn(line, shown)

    def test_a_conversation_can_be_ended_from_outside(self):
        talk = self.talk
        def by_lines():
            return termios.tcgetattr(talk.terminal)[3] & termios.ICANON != 0
        self.assertFalse(by_lines(), "the line editor reads each key")
        os.kill(talk.child.pid, signal.SIGTERM)
        self.assertEqual(talk.child.wait(10), -signal.SIGTERM)
        self.assertTrue(by_lines())


if __name__ == "__main__":
    unittest.main()
