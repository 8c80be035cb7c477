//! What a command runs on.

use std::future::Future;

use muster_replica::exit::{Failure, Outcome};
use muster_replica::process;
use tokio::runtime::Runtime;

/// Threads for the network.
pub(super) fn runtime() -> Outcome<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::environment(format!("the system gives no threads ({error})")))
}

/// The result of work on a runtime of its own.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Outcome<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        process::refuse_large_files();
        work.await
    });
    // A computation that is under way need not end first: what it would say is not said any more.
    runtime.shutdown_background();
    Ok(done)
}
