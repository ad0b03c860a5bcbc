"""Entry point of the keeper: `python -I -S -X utf8 main.py --socket S --log L [--sweep-grace SECONDS]`.

Small on purpose: a script is compiled at every start and its compiler's memory stays; what it imports comes from
byte code. Isolated mode leaves the script's folder off the path, so it is added last, where it cannot shadow anything.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from daemon import main

    sys.exit(main(sys.argv[1:]))
