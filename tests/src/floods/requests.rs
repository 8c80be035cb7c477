//! Channels of strangers, and what they ask and bring on them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::{Bytes, List, encode};
use muster_core::ids::{Block, Height, Round};
use muster_core::limits::{CHUNK_BYTES, MESSAGE_BYTES};
use muster_core::manifest::DataFile;
use muster_core::messages::wire::{BlockData, DataQuery, Follow, PutBlocks, Request};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::line::{Line, sealed};
use super::pace::{Uplink, drain, write};
use super::target::{Target, source};

/// Channels of those who pipeline requests and read the answers: two keep a machine of two cores busy.
const ASKING: usize = 8;
/// Channels of those who only hold what they have begun.
const HOLDING: usize = 128;
/// Channels of those who bring parts to a node.
const BRINGING: usize = 64;
/// How long a handshake may take, and how long a message that is not finished is left so.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before it is dialled again.
const PAUSE: Duration = Duration::from_millis(500);
/// Requests in one piece.
const PIPELINED: usize = 64;

/// What a channel is used for.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// Requests without end, whose answers are read.
    Ask,
    /// Requests without end, and nothing is read.
    Deaf,
    /// So many bytes of one message, and then nothing.
    Hold(usize),
}

struct Plan {
    many: usize,
    port: SocketAddr,
    message: Vec<u8>,
    purpose: Use,
}

/// All bytes but the last one.
const BUT_LAST: Use = Use::Hold(1);

pub(super) fn cut(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let message = vec![7; 256 << 10];
    let purpose = Use::Hold(message.len() / 2);
    begin(target, uplink, Plan { many: HOLDING, port: target.channel, message, purpose })
}

pub(super) fn brim(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let message = vec![7; MESSAGE_BYTES];
    begin(target, uplink, Plan { many: HOLDING, port: target.channel, message, purpose: BUT_LAST })
}

pub(super) fn follow(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    ask(target, uplink, &Request::Follow(Follow { height: Height(0), board: 0, notice: 0 }))
}

pub(super) fn board(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    ask(target, uplink, &Request::Follow(Follow { height: Height(u64::MAX), board: 7, notice: 0 }))
}

fn text() -> Request {
    Request::Data(DataQuery { file: DataFile::Training, first: 0, count: u32::MAX })
}

pub(super) fn data(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    ask(target, uplink, &text())
}

pub(super) fn deaf(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let message = encode(&text());
    begin(target, uplink, Plan { many: HOLDING, port: target.channel, message, purpose: Use::Deaf })
}

/// Parts for a round that never comes, each a message of nearly the longest length.
pub(super) fn put(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let chunk = Bytes::new(vec![7; CHUNK_BYTES]).expect("as long as a chunk is");
    let data = |number| BlockData {
        block: Block(number),
        chunks: List::new(vec![chunk.clone()]).expect("one"),
        proofs: List::default(),
    };
    let many = (MESSAGE_BYTES - 1024) / (CHUNK_BYTES + 64);
    let blocks = List::new((0..many.min(1024) as u32).map(data).collect()).expect("not more");
    let message = encode(&Request::PutBlocks(PutBlocks { round: Round(1 << 30), attempt: 0, blocks }));
    begin(target, uplink, Plan { many: BRINGING, port: target.node.1, message, purpose: Use::Ask })
}

fn ask(target: &Arc<Target>, uplink: &Arc<Uplink>, request: &Request) -> JoinSet<()> {
    let message = encode(request);
    begin(target, uplink, Plan { many: ASKING, port: target.channel, message, purpose: Use::Ask })
}

fn begin(target: &Arc<Target>, uplink: &Arc<Uplink>, plan: Plan) -> JoinSet<()> {
    let (mut tasks, plan) = (JoinSet::new(), Arc::new(plan));
    for number in 0..plan.many {
        let (target, uplink, plan) = (target.clone(), uplink.clone(), plan.clone());
        tasks.spawn(async move {
            loop {
                uplink.connections.take(1).await;
                let dialled = Line::dial(plan.port, source(number), target.run);
                if let Ok(Ok(line)) = timeout(PATIENCE, dialled).await {
                    let _ = flood(line, &plan, &uplink).await;
                }
                sleep(PAUSE).await;
            }
        });
    }
    tasks
}

async fn flood(line: Line, plan: &Plan, uplink: &Uplink) -> io::Result<()> {
    let Line { mut stream, mut sealer } = line;
    if let Use::Hold(short) = plan.purpose {
        let sealed = sealed(&mut sealer, &plan.message, 1)?;
        write(&mut stream, &sealed[..sealed.len() - short], uplink).await?;
        // Until it is closed, or for as long as a slow uplink would take.
        let _ = timeout(4 * PATIENCE, stream.read(&mut [0; 64])).await;
        return Ok(());
    }
    let copies = if plan.message.len() > 1024 { 1 } else { PIPELINED };
    let (from, mut to) = stream.into_split();
    let ask = async {
        loop {
            write(&mut to, &sealed(&mut sealer, &plan.message, copies)?, uplink).await?;
        }
    };
    if plan.purpose == Use::Deaf {
        return ask.await;
    }
    tokio::select! {
        asked = ask => asked,
        () = drain(from, uplink) => Ok(()),
    }
}
