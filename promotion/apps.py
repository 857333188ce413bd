from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "promotion"

    def ready(self) -> None:
        from promotion import checks  # noqa: F401  (registers the system checks)
        from promotion.audit.actions import ACTIONS
        from rollouts import audit

        audit.register_actions(ACTIONS)
