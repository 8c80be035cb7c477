//! Ending a rehearsal early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_replica::StopRequests;
use muster_replica::exit::{Exit, Failure, Outcome};

/// How often things are looked at.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Whether the rehearsal was asked to end.
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn listen() -> Outcome<Self> {
        let pressed = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Failure::environment(format!("the system gives no threads ({error})")))?;
        let shared = pressed.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let mut stops = StopRequests::listen();
                stops.next().await;
                shared.store(true, Ordering::Relaxed);
                stops.next().await;
                muster_show::board::give_back();
                std::process::exit(i32::from(Exit::Interrupted.code()));
            });
        });
        Ok(Self(pressed))
    }

    /// # Errors
    /// [`Failure`] once it was asked for.
    pub(super) fn check(&self) -> Outcome<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Failure {
                exit: Exit::Interrupted,
                message: "interrupted; everyone was sent home".into(),
            });
        }
        Ok(())
    }
}
