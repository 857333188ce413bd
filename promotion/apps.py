from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "promotion"

    def ready(self) -> None:
        from promotion import checks  # noqa: F401  (registers the system checks)
        from promotion.audit.actions import ACTIONS
        from promotion.services import gating, passkeys
        from rollouts import audit
        from rollouts.signals import run_closed

        audit.register_actions(ACTIONS)
        passkeys.keep_history()
        run_closed.connect(gating.judge_after_run, dispatch_uid="promotion.judge_after_run")
