//! The inbox from other languages: the programs in `clients`, run as they are or with other work, and the README's Java.

mod crashes;
mod failures;
mod hidden;
mod java;
mod once;
mod station;

/// Each scenario as a test of each program.
macro_rules! in_each_language {
    ($($scenario:path as $name:ident,)*) => {
        mod python {
            $(#[tokio::test]
            async fn $name() -> anyhow::Result<()> {
                $scenario(crate::station::Language::Python).await
            })*
        }

        mod node {
            $(#[tokio::test]
            async fn $name() -> anyhow::Result<()> {
                $scenario(crate::station::Language::Node).await
            })*
        }
    };
}

in_each_language! {
    crate::once::redelivered as a_redelivered_message_counts_once,
    crate::once::other_content as other_content_under_the_same_id_is_parked_and_overwrites_nothing,
    crate::once::no_room as what_cannot_be_parked_is_not_acknowledged,
    crate::once::unusable_id as a_message_that_no_inbox_can_remember_is_parked,
    crate::crashes::before_the_commit as a_crash_before_the_commit_leaves_nothing_and_the_next_delivery_counts,
    crate::crashes::before_the_acknowledgement as a_crash_before_the_acknowledgement_counts_once,
    crate::crashes::of_the_session as a_lost_session_is_no_failure_of_the_message,
    crate::failures::mended as a_failure_is_rolled_back_and_tried_again_after_a_pause,
    crate::failures::used_up as a_message_that_fails_every_time_is_parked,
    crate::failures::odd as what_other_clients_can_send_is_parked_like_anything,
    crate::hidden::error as work_that_keeps_an_error_to_itself_has_failed,
    crate::hidden::no_error as work_that_fails_by_what_is_no_text_or_no_error_has_failed_like_any,
}
