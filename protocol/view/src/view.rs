//! A run as it goes on: reads what is sealed beside whoever seals or follows, and says when there is news.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use muster_core::ids::{Height, MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::Role;
use muster_core::messages::record::{Body, Record};
use muster_core::messages::wire::Notice;
use muster_core::sign::{Message, Signed, Verified};
use muster_store::dataset::{Dataset, unigram_bigram};
use muster_store::journal::Journal;
use tokio::sync::watch;

use crate::event::LOG;
use crate::log::LogReader;
use crate::story::{AuditState, Baselines, Story};

/// How often it looks for news.
const PAUSE: Duration = Duration::from_millis(300);
/// Records taken at once, so that a page of a long run that is still being read shows how far that is.
const RECORDS: usize = 256;
/// How often the journal of another process is copied, and how much longer than a copy took at least.
const COPY: Duration = Duration::from_secs(2);
const COPY_SHARE: u32 = 20;
/// How much longer it rests than a measurement took.
const MEASURE_SHARE: u32 = 19;
/// Bytes of text that simple models are made of.
pub const COMPARED: u64 = 64 << 20;
/// Notices that wait to be taken in; more are left out.
const NOTICES: usize = 16_384;

/// Where the records come from.
pub enum Source {
    /// The journal that this process writes to.
    Own(Arc<Journal>),
    /// The journal in a folder, which another process may be writing to.
    Other(PathBuf),
    /// Records that are all there are.
    Whole(Vec<Signed<Record>>),
}

/// A run, looked at.
pub struct View {
    /// What its members agree on.
    pub manifest: Arc<Manifest>,
    /// Folder with `log.jsonl` and `evidence/`, where there are any.
    pub folder: Option<PathBuf>,
    /// The member whose program shows it.
    pub me: Option<MemberId>,
    story: RwLock<Story>,
    notices: Mutex<Vec<Notice>>,
    records: Mutex<Reader>,
    version: watch::Sender<u64>,
    /// Whether nothing is read any more.
    ended: AtomicBool,
}

/// What reads records.
enum Reader {
    Own(Arc<Journal>),
    Other { folder: PathBuf, copy: Option<Arc<Journal>>, next: Instant },
    Whole(Vec<Signed<Record>>),
}

impl View {
    /// Begins to read, in a thread of its own, which ends when nobody has the view any more.
    pub fn start(
        manifest: Arc<Manifest>,
        source: Source,
        folder: Option<PathBuf>,
        me: Option<MemberId>,
    ) -> Arc<Self> {
        let view = Arc::new(Self::of(manifest, source, folder, me, Story::default()));
        let weak = Arc::downgrade(&view);
        // Without a thread there are pages without news, and the run goes on.
        if let Err(error) = thread::Builder::new().name("view".into()).spawn(move || read(&weak)) {
            tracing::warn!("the pages stay empty: the system gives no thread ({error})");
        }
        view
    }

    /// A story that is told and not read: to measure how long its pages take.
    pub fn told(manifest: Arc<Manifest>, story: Story) -> Arc<Self> {
        Arc::new(Self::of(manifest, Source::Whole(Vec::new()), None, None, story))
    }

    fn of(
        manifest: Arc<Manifest>,
        source: Source,
        folder: Option<PathBuf>,
        me: Option<MemberId>,
        story: Story,
    ) -> Self {
        let reader = match source {
            Source::Own(journal) => Reader::Own(journal),
            Source::Other(folder) => Reader::Other { folder, copy: None, next: Instant::now() },
            Source::Whole(records) => Reader::Whole(records),
        };
        Self {
            manifest,
            folder,
            me,
            story: RwLock::new(story),
            notices: Mutex::default(),
            records: Mutex::new(reader),
            version: watch::Sender::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Compares with simple models on the held-out text, in a thread, if the text is small enough for that.
    pub fn compare(self: &Arc<Self>, dataset: Arc<Dataset>) {
        if dataset.data().bytes > COMPARED {
            return;
        }
        let weak = Arc::downgrade(self);
        thread::spawn(move || {
            let compared = unigram_bigram(&dataset);
            let compared =
                compared.inspect_err(|error| tracing::warn!("no simple models are shown: {error}"));
            if let (Some(view), Ok((unigram, bigram))) = (weak.upgrade(), compared) {
                view.write(|story| story.baselines = Some(Baselines { unigram, bigram }));
            }
        });
    }

    /// Shows losses on the held-out text, which `measure` gives with the round before which each is true: after each round, but for
    /// a twentieth of the time at most, in a thread that ends with the view.
    pub fn measure(self: &Arc<Self>, mut measure: impl FnMut() -> Option<(Round, f64)> + Send + 'static) {
        let weak = Arc::downgrade(self);
        let mut rounds = usize::MAX;
        thread::spawn(move || {
            loop {
                let Some(view) = weak.upgrade() else { return };
                let now = view.story().rounds.len();
                drop(view);
                let began = Instant::now();
                if now != rounds
                    && let Some((round, loss)) = measure()
                    && let Some(view) = weak.upgrade()
                {
                    rounds = now;
                    view.write(|story| story.held_out.insert(round.0, loss));
                }
                thread::sleep(PAUSE.max(MEASURE_SHARE * began.elapsed()));
            }
        });
    }

    /// Waits until every record has been read that was there at the beginning.
    ///
    /// # Errors
    /// In words: they cannot be read.
    pub fn read_whole(&self) -> Result<(), String> {
        loop {
            let (done, unread) = {
                let story = self.story();
                (story.caught_up || story.broken.is_some(), story.unread.clone())
            };
            match unread {
                _ if done => return Ok(()),
                Some(unread) => return Err(unread),
                None if self.ended.load(Ordering::Relaxed) => return Err("the records cannot be read".into()),
                None => thread::sleep(PAUSE / 10),
            }
        }
    }

    fn is_exact(&self) -> bool {
        self.manifest.profile.has_defined_bits()
    }

    /// The run so far.
    pub fn story(&self) -> RwLockReadGuard<'_, Story> {
        self.story.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever there is news.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The number that news counts up.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// A public notice that this program has heard.
    pub fn hear(&self, notice: &Notice) {
        // What the rows of a table differ in says something only where honest ones are equal; with a tolerance they are large.
        let shown = is_shown(notice) && (self.is_exact() || !matches!(notice, Notice::Opening(_)));
        let mut notices = lock(&self.notices);
        if shown && !self.ended.load(Ordering::Relaxed) && notices.len() < NOTICES {
            notices.push(notice.clone());
        }
    }

    /// A record as it was sealed.
    pub fn record(&self, height: u64) -> Option<Signed<Record>> {
        self.records(Height(height), 1).into_iter().next()
    }

    fn write<T>(&self, change: impl FnOnce(&mut Story) -> T) -> T {
        let changed = change(&mut self.locked());
        self.version.send_modify(|version| *version += 1);
        changed
    }

    fn locked(&self) -> RwLockWriteGuard<'_, Story> {
        self.story.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many records there are.
    fn known(&self) -> u64 {
        match &*lock(&self.records) {
            Reader::Own(journal) | Reader::Other { copy: Some(journal), .. } => {
                journal.height().map_or(0, |height| height.0)
            }
            Reader::Other { copy: None, .. } => 0,
            Reader::Whole(records) => records.len() as u64,
        }
    }

    fn records(&self, from: Height, most: usize) -> Vec<Signed<Record>> {
        let reader = lock(&self.records);
        let read = match &*reader {
            Reader::Own(journal) | Reader::Other { copy: Some(journal), .. } => journal.records(from, most),
            Reader::Other { copy: None, .. } => return Vec::new(),
            Reader::Whole(records) => {
                return records.iter().skip(from.index()).take(most).cloned().collect();
            }
        };
        read.unwrap_or_else(|error| {
            tracing::warn!("the pages are not updated: {error}");
            Vec::new()
        })
    }

    /// Copies the journal of another process again, if that is due; why that failed, if it did.
    fn copy(&self) -> Option<String> {
        let folder = match &*lock(&self.records) {
            Reader::Other { folder, next, .. } if Instant::now() >= *next => folder.clone(),
            _ => return None,
        };
        let began = Instant::now();
        // Pages are made of the copy before meanwhile.
        let copied = Journal::copy_of(&folder);
        let mut reader = lock(&self.records);
        let Reader::Other { copy, next, .. } = &mut *reader else { return None };
        *next = Instant::now() + COPY.max(began.elapsed() * COPY_SHARE);
        match copied {
            Ok(journal) => {
                *copy = Some(Arc::new(journal));
                None
            }
            Err(error) => {
                tracing::warn!("the pages are not updated: {error}");
                copy.is_none().then(|| error.to_string())
            }
        }
    }

    /// Whether there is anything to read from.
    fn is_there(&self) -> bool {
        !matches!(&*lock(&self.records), Reader::Other { copy: None, .. })
    }

    /// Whether records come as they are sealed, and not in copies some seconds apart.
    fn is_prompt(&self) -> bool {
        matches!(&*lock(&self.records), Reader::Own(_))
    }
}

/// Reads until nobody has the view any more.
fn read(weak: &Weak<View>) {
    let Some(view) = weak.upgrade() else { return };
    let mut ledger = Ledger::new(view.manifest.clone());
    let mut log = view.folder.as_ref().map(|folder| LogReader::new(folder.join(LOG)));
    drop(view);
    let _ended = Ended(weak.clone());
    // Records that were there before are not sealed just now.
    let mut caught_up = false;
    loop {
        let Some(view) = weak.upgrade() else { return };
        let unread = view.copy();
        if unread.is_some() || view.is_there() && view.story().unread.is_some() {
            view.write(|story| story.unread = unread);
        }
        let records = view.records(ledger.height(), RECORDS);
        let more = records.len() == RECORDS;
        // Whoever catches up takes in many rounds at once: none of them ended just now.
        let ends = |signed: &&Signed<Record>| {
            signed.verify(ledger.run()).is_ok_and(|record| matches!(record.body, Body::Outcome(_)))
        };
        let live = caught_up && view.is_prompt() && records.iter().filter(ends).count() <= 1;
        let batch = Batch { records, notices: std::mem::take(&mut *lock(&view.notices)), live };
        // What the log speaks of must have been read.
        let log = if more { None } else { log.as_mut() };
        let Ok(logged) = view.take(&mut ledger, &batch, log) else { return };
        if more || logged {
            continue;
        }
        if !caught_up && view.is_there() {
            caught_up = true;
            view.write(|story| story.caught_up = true);
        }
        drop(view);
        thread::sleep(PAUSE);
    }
}

/// Says that nothing is read any more, however that came.
struct Ended(Weak<View>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(view) = self.0.upgrade() {
            view.ended.store(true, Ordering::Relaxed);
        }
    }
}

/// What came since the last look.
struct Batch {
    records: Vec<Signed<Record>>,
    notices: Vec<Notice>,
    /// Whether the records are sealed just now, and not read from before.
    live: bool,
}

/// The ledger does not go on.
struct Broken;

impl View {
    /// Takes in what came; whether there was something in the log, of which there may be more.
    fn take(&self, ledger: &mut Ledger, batch: &Batch, log: Option<&mut LogReader>) -> Result<bool, Broken> {
        let Batch { records, notices, live } = batch;
        let now = live.then(unix_seconds);
        let mut broken = None;
        for signed in records {
            // Without the lock: pages go on being served while signatures are checked.
            match ledger.apply(signed) {
                Ok(record) => self.locked().seal(&record, ledger, now),
                Err(reject) => {
                    broken = Some(format!("Record {} breaks a rule: {reject}", ledger.height()));
                    break;
                }
            }
        }
        let mut story = self.locked();
        // Who audits and who is audited is known once all members are.
        if story.caught_up {
            notices.iter().for_each(|notice| hear(&mut story, notice, ledger));
        }
        let logged = log.is_some_and(|log| log.step(&mut story));
        if story.caught_up && !logged && records.is_empty() && notices.is_empty() {
            return Ok(false);
        }
        story.stand(ledger);
        story.records = ledger.height().0;
        drop(story);
        let known = self.known();
        let stop = broken.is_some();
        self.write(|story| {
            story.known = known.max(story.records);
            story.broken = broken;
        });
        if stop { Err(Broken) } else { Ok(logged) }
    }
}

/// Whether pages show anything of it.
fn is_shown(notice: &Notice) -> bool {
    matches!(notice, Notice::Request(_) | Notice::Table(_) | Notice::Opening(_) | Notice::Verdict(_))
}

/// Takes in a notice that its author may say. The steward has checked what else there is to check of it; a page that shows a
/// step too many does no harm, since bans and credits come from records.
fn hear(story: &mut Story, notice: &Notice, ledger: &Ledger) {
    fn good<M: Message>(signed: &Signed<M>, ledger: &Ledger) -> Option<Verified<M>> {
        signed.verify(ledger.run()).ok()
    }
    let is = |id: &MemberId, role| ledger.member(id).is_some_and(|member| member.role == role);
    match notice {
        Notice::Request(signed) => {
            if let Some(request) =
                good(signed, ledger).filter(|request| is(&request.author(), Role::Verifier))
                && is(&request.target, Role::Node)
            {
                let (round, member) = (request.round, request.target);
                story.audits.request(signed.digest(), round, member, request.author());
            }
        }
        Notice::Table(signed) => {
            if let Some(table) = good(signed, ledger)
                && story.audits.audited(&table.request) == Some(table.author())
            {
                story.audits.reached(&table.request, AuditState::Recomputing);
            }
        }
        Notice::Opening(signed) => {
            if let Some(opening) = good(signed, ledger)
                && story.audits.audited(&opening.request) == Some(opening.author())
            {
                story.audits.opened(opening.request, opening.rows.clone());
            }
        }
        Notice::Verdict(signed) => {
            if let Some(verdict) = good(signed, ledger)
                && story.audits.auditor(&verdict.request) == Some(verdict.author())
            {
                story.audits.judge(&verdict);
            }
        }
        _ => {}
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
