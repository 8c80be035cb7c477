//! The status on a local socket in the program's folder, `status.sock`, for commands of the same user on this machine.
//!
//! Nothing is read from whoever connects. It gets one line of JSON, and the connection is closed.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Status;
use super::desk::Desk;

/// Name of the socket in the folder.
const NAME: &str = "status.sock";
/// Where it is made, before it has its name.
const ASIDE: &str = "status.new";
/// Connections at once; others wait in the system's queue.
const CONNECTIONS: usize = 8;
/// How long whoever connects has to read.
const READ: Duration = Duration::from_secs(5);
/// How long a command waits for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest answer: a line for each member that there may be.
const LONGEST: u64 = 16 << 20;

/// A socket that is being served; gone once this is dropped.
pub struct Served {
    path: PathBuf,
    _task: JoinSet<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // The next program of this folder takes its place otherwise.
        let _ = fs::remove_file(&self.path);
    }
}

/// Serves a program's status in its folder, which nobody else holds.
///
/// # Errors
/// What the system reports, also for a path that is too long for a socket.
pub fn serve(folder: &Path, desk: Arc<Desk>) -> io::Result<Served> {
    let path = folder.join(NAME);
    let listener = bind(folder, &path)?;
    let mut task = JoinSet::new();
    task.spawn(accept(listener, desk));
    Ok(Served { path, _task: task })
}

/// Only this user may connect, from the first moment on: until its mode is set the socket lies where nobody else comes.
fn bind(folder: &Path, path: &Path) -> io::Result<UnixListener> {
    let aside = folder.join(ASIDE);
    // Left behind by a process that was killed.
    let _ = fs::remove_dir_all(&aside);
    DirBuilder::new().mode(0o700).create(&aside)?;
    let made = aside.join("s");
    let bound = UnixListener::bind(&made).and_then(|listener| {
        fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        fs::rename(&made, path)?;
        Ok(listener)
    });
    let _ = fs::remove_dir_all(&aside);
    bound
}

async fn accept(listener: UnixListener, desk: Arc<Desk>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut answers = JoinSet::new();
    loop {
        // Never closed.
        let place = places.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let desk = desk.clone();
                answers.spawn(async move {
                    let _place = place;
                    // Whoever reads nothing takes its place for so long.
                    let _ = timeout(READ, answer(stream, &desk)).await;
                });
            }
            // Descriptors may be scarce for a while.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
        while answers.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: UnixStream, desk: &Desk) -> io::Result<()> {
    let line = match desk.status().await {
        Some(status) => status.json(),
        None => String::new(),
    };
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await
}

/// Why there is no status.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// No program of this folder runs, or it has no socket.
    NotRunning,
    /// It runs, and says nothing now.
    Busy,
    /// Something else is there, or this user may not ask; in words.
    Refused(String),
}

/// Asks the program of a folder for its status.
///
/// # Errors
/// [`Missing`].
pub async fn ask(folder: &Path) -> Result<Status, Missing> {
    let stream = UnixStream::connect(folder.join(NAME)).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Missing::NotRunning,
        _ => Missing::Refused(error.to_string()),
    })?;
    let mut line = Vec::new();
    let read = timeout(ANSWER, stream.take(LONGEST).read_to_end(&mut line)).await;
    match read {
        Err(_) => Err(Missing::Busy),
        Ok(Err(error)) => Err(Missing::Refused(error.to_string())),
        Ok(Ok(0)) => Err(Missing::Busy),
        Ok(Ok(_)) => serde_json::from_slice(&line).map_err(|error| Missing::Refused(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_its_user_may_connect_and_nobody_takes_all_places() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ask(folder.path()).await, Err(Missing::NotRunning));
        let (desk, mut asked) = Desk::open(folder.path());
        tokio::spawn(async move {
            while let Some(inquiry) = asked.recv().await {
                inquiry.answer(Status { name: "x".repeat(1 << 20), ..Status::default() });
            }
        });
        // As a killed process leaves it.
        drop(std::os::unix::net::UnixListener::bind(folder.path().join(NAME)).unwrap());
        assert_eq!(ask(folder.path()).await, Err(Missing::NotRunning));
        let served = serve(folder.path(), desk).unwrap();
        let mode = fs::metadata(folder.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, folder.path().join(ASIDE).exists()), (0o600, false));
        let mut idle = Vec::new();
        for _ in 0..3 * CONNECTIONS {
            idle.push(UnixStream::connect(folder.path().join(NAME)).await.unwrap());
        }
        drop(idle.split_off(2 * CONNECTIONS));
        // Those that read nothing lose their places.
        let answer = loop {
            match ask(folder.path()).await {
                Err(Missing::Busy) => {}
                answer => break answer.unwrap(),
            }
        };
        assert_eq!(answer.name.len(), 1 << 20);
        drop(served);
        assert_eq!(ask(folder.path()).await, Err(Missing::NotRunning));
    }
}
