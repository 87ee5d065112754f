"""The kind of Prefect block that holds an address for e-mail or a webhook. The UI's server imports it, to send to such blocks."""

from prefect.blocks.notifications import AppriseNotificationBlock


class AppriseAddress(AppriseNotificationBlock):
    """Any address that Apprise knows, such as `mailto` for an SMTP server or `json` for a webhook.

    Prefect's own block for webhooks writes the address into the log when the other side answers with an error.
    """

    _block_type_name = "Apprise Address"
    _block_type_slug = "apprise-address"
    _description = "Sends notifications to an Apprise URL: e-mail through an SMTP server, a webhook, and others."
