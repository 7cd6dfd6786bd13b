"""`ricci-gpu` with an encoder of words that can be slow, for the tests that kill processes.

Started as a script. The worker processes that it starts load this file again, so they have the
encoder too. A text with the word `slow` takes RICCI_TEST_SECONDS, one with `poison` raises.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import WordEncoder


class SlowEncoder(WordEncoder):
    def encode(self, texts, tokens=False, *, log_truncated=True):
        if any("slow" in text for text in texts):
            time.sleep(float(os.environ.get("RICCI_TEST_SECONDS", "0")))
        if any("poison" in text for text in texts):
            raise RuntimeError("poison in the batch")
        return super().encode(texts, tokens, log_truncated=log_truncated)


if __name__ in ("__main__", "__mp_main__"):
    from ricci_gpu.models.encoder import Encoder

    Encoder.load = staticmethod(lambda *arguments: SlowEncoder())

if __name__ == "__main__":
    from ricci_gpu.cli import main

    sys.exit(main())
