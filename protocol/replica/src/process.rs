//! The process that follows a run, on a machine that does other things as well.

/// Has this process log its bugs and go on, unless the environment has `MUSTER_BUGS=panic`, as that of tests does.
pub fn outlive_bugs() {
    if std::env::var_os("MUSTER_BUGS").is_none_or(|word| word != "panic") {
        muster_core::bug::outlive();
    }
}

/// Lowers the priority of this process. Threads that are made later inherit it.
pub fn give_way() {
    let own = std::process::id().to_string();
    let done = std::process::Command::new("renice").args(["-n", "10", "-p", &own]).output();
    if !done.is_ok_and(|done| done.status.success()) {
        tracing::warn!("--nice has no effect: the command `renice` is missing or refused");
    }
}

/// Lowers the priority of the calling thread, where the system gives threads one of their own.
pub fn thread_gives_way() {
    // `<process>/task/<thread>`: Linux takes a thread for a process of its own here.
    let Ok(name) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(thread) = name.file_name() else { return };
    let done = std::process::Command::new("renice").args(["-n", "15", "-p"]).arg(thread).output();
    if !done.is_ok_and(|done| done.status.success()) {
        tracing::debug!("a thread keeps its priority: the command `renice` is missing or refused");
    }
}

/// A file that may not grow (`ulimit -f`) fails the write, which says so; the signal would end the process without a
/// word. Within a runtime.
pub fn refuse_large_files() {
    // SIGXFSZ on Linux, macOS and the BSDs.
    #[cfg(unix)]
    let _ = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(25));
}
