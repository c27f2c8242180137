//! Imports the configured modules into a new sandbox, which is ready only after that.

use super::messages::ExecutorRef;
use super::pending::Request;
use super::state::ExecutorState;
use crate::protocol::frames::HostFrame;
use crate::protocol::limits::{PRELOAD, PRELOAD_CHARS, PRELOAD_SKIPPED};
use crate::protocol::preload::{NotImported, Preload, Preloaded};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;
use crate::protocol::text::brief;

impl ExecutorState {
    pub(super) fn preload(&mut self, myself: &ExecutorRef, receipt: Receipt) {
        self.preloading = Some(Box::new(receipt));
        let Preload { imports, families } = self.args.preload.clone();
        let frame = |request| HostFrame::Preload { request, imports, families, bind: true };
        self.request(myself, Request::Preload, frame, PRELOAD);
    }

    pub(super) fn preloaded(
        &mut self,
        myself: &ExecutorRef,
        names: u64,
        failed: Vec<NotImported>,
        skipped: Vec<NotImported>,
    ) {
        if let Some(first) = failed.first() {
            let NotImported { import, error } = cut(first);
            self.preload_failed(myself, format!("`{import}` failed: {error}"));
        } else if let Some(receipt) = self.preloading.take() {
            let skipped = skipped.iter().take(PRELOAD_SKIPPED).map(cut).collect();
            self.started(myself, receipt, Some(Preloaded { names, skipped }));
        }
    }

    pub(super) fn preload_failed(&mut self, myself: &ExecutorRef, why: String) {
        if self.preloading.is_some() {
            self.give_up(myself, why);
        }
    }
}

pub(super) fn problem(message: String) -> Problem {
    Problem::new(Code::PreloadFailed, message).hint(
        "leave the module out of `--preload` or `sessions.preload`, or choose an image that has it with `--image`",
    )
}

fn cut(reported: &NotImported) -> NotImported {
    NotImported {
        import: brief(&reported.import, PRELOAD_CHARS),
        error: brief(&reported.error, PRELOAD_CHARS),
    }
}
