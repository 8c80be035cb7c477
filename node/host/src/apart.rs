//! The driver on a thread of its own.

use std::thread::JoinHandle;

use muster_replica::exit::{Failure, Outcome};
use muster_roles::steward::HostingEnd;
use tokio::sync::oneshot;

use super::driver::StewardDriver;

/// The thread, which stops when this is dropped.
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Its folder is free only afterwards. It looks twice a second at the latest, and waits for nothing here.
        if let Some(handle) = self.handle.take()
            && handle.join().is_err()
        {
            tracing::error!("a bug: the steward's thread has panicked");
        }
    }
}

/// Runs the driver until hosting ends. Given up, it stops at once.
///
/// # Errors
/// As of [`StewardDriver::run`], or where the system gives no thread.
pub(super) async fn run(driver: StewardDriver) -> Outcome<HostingEnd> {
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, told) = oneshot::channel();
    let failed = |error: std::io::Error| Failure::environment(format!("the steward needs a thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let work = move || {
        let ending = runtime.block_on(async {
            tokio::select! {
                ending = driver.run() => Some(ending),
                _ = stopped => None,
            }
        });
        if let Some(ending) = ending {
            let _ = tell.send(ending);
        }
    };
    let handle = std::thread::Builder::new().name("steward".to_owned()).spawn(work).map_err(failed)?;
    let _thread = Thread { stop: Some(stop), handle: Some(handle) };
    let panicked = || Failure::environment("the steward's thread has panicked; please report this");
    told.await.unwrap_or_else(|_| Err(panicked()))
}
