"""What other apps may hear of this one. A signal can be lost in a kill, so nobody may rely on it alone."""

from django.dispatch import Signal

# sent after commit, with `run_id`
run_closed = Signal()
