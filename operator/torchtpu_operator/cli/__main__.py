"""`python -m torchtpu_operator.cli` is `ttj`."""

from torchtpu_operator.cli.main import main

main()
