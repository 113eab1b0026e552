"""An engine for tests of ``octavo bench compare``: it counts, and notes each run in a file. Standard library only."""

import os
import subprocess
import sys
import time


class Engine:
    pause = 0.01

    def load(self, model, threads, max_sequences, max_tokens):
        sys.stdout.write("noise on standard output, as engines make it\n")
        subprocess.run(["echo", "more of it, past Python"], check=True)
        self.limits = (max_sequences, max_tokens)
        return f"fake 1, {threads} threads, {os.path.basename(model)}"

    def run(self, prompts, output_len):
        assert len(prompts) <= self.limits[0]
        assert all(len(prompt) + output_len <= self.limits[1] for prompt in prompts)
        if notes := os.environ.get("FAKE_ENGINE_NOTES"):
            with open(notes, "a") as file:
                file.write(f"{type(self).__name__} {sum(map(sum, prompts))}\n")
        time.sleep(self.pause)
        return [output_len for _ in prompts]


class Slow(Engine):
    pause = 0.03


class OwnClock(Engine):
    def run(self, prompts, output_len):
        self.seconds = 1234.5
        return [output_len for _ in prompts]


class Short(Engine):
    def run(self, prompts, output_len):
        return [output_len - 1 for _ in prompts]


class Refuses(Engine):
    def load(self, model, threads, max_sequences, max_tokens):
        raise ValueError("no such\nkind of weights")


class Dies(Engine):
    def run(self, prompts, output_len):
        sys.stderr.write("Segmentation fault\n")
        os._exit(7)


class StartsAnother(Engine):
    def load(self, model, threads, max_sequences, max_tokens):
        return str(subprocess.Popen(["sleep", "60"]).pid)
