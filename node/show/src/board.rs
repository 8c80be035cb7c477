//! `--board`: the run on the whole terminal, drawn anew when there is news.

use std::io::{self, IsTerminal, Stderr, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};
use std::{panic, thread};

use muster_core::lock::lock;
use muster_view::View;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::lines;
use super::picture::{Picture, Surroundings};

/// How often it is drawn, for the clock and for news.
const PAUSE: Duration = Duration::from_millis(250);

/// The terminal, while a board has it: a process has one.
static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);

type Screen = Terminal<CrosstermBackend<Stderr>>;

/// A board, which has the terminal until this is dropped.
pub struct Board(());

/// Whether people want colours here: <https://no-color.org>.
pub fn wants_colour() -> bool {
    let said = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    said("NO_COLOR").is_none() && !is_dumb()
}

/// Whether there is a terminal to draw a board on, that can also be typed at.
pub fn fits() -> bool {
    cfg!(unix) && !is_dumb() && stderr().is_terminal() && io::stdin().is_terminal()
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb")
}

/// Gives the terminal back, if a board has it, and writes what was logged meanwhile.
pub fn give_back() {
    if lock(&SCREEN).take().is_some() {
        leave();
    }
}

fn leave() {
    // Whatever fails here, nobody sees it.
    let _ = execute!(stderr(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    lines::release();
}

impl Board {
    /// Takes the terminal.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn open(view: Arc<View>, seen: Surroundings) -> io::Result<Self> {
        let screen = Terminal::new(CrosstermBackend::new(stderr()))?;
        enable_raw_mode()?;
        lines::keep();
        *lock(&SCREEN) = Some(screen);
        // From here on whatever fails gives it back.
        let board = Self(());
        // Not every terminal has an empty one.
        execute!(stderr(), EnterAlternateScreen, Clear(ClearType::All))?;
        tell_of_panics();
        let stopping = Arc::new(AtomicBool::new(false));
        let shared = stopping.clone();
        thread::Builder::new().name("board".into()).spawn(move || draw(&view, &seen, &shared))?;
        // Nobody waits for it: half a key may keep it reading for ever.
        thread::Builder::new().name("keys".into()).spawn(move || read_keys(&stopping))?;
        Ok(board)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        give_back();
    }
}

/// A panic is said on the terminal as it was.
fn tell_of_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // The thread that draws may have it, and wait for what the one that panics has.
            if let Ok(mut screen) = SCREEN.try_lock()
                && screen.take().is_some()
            {
                leave();
            }
            before(info);
        }));
    });
}

/// Draws until the terminal is given back.
fn draw(view: &View, seen: &Surroundings, stopping: &AtomicBool) {
    let (began, colour) = (Instant::now(), wants_colour());
    loop {
        {
            let mut screen = lock(&SCREEN);
            let Some(terminal) = &mut *screen else { return };
            let stopping = stopping.load(Ordering::Relaxed);
            let picture = Picture { view, seen, colour, stopping, elapsed: began.elapsed() };
            if terminal.draw(|frame| picture.draw(frame, &view.story())).is_err() {
                drop(screen);
                return give_back();
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Turns keys into signals, which a terminal without a board does by itself.
fn read_keys(stopping: &AtomicBool) {
    while let Ok(event) = event::read() {
        if lock(&SCREEN).is_none() {
            return;
        }
        if stops(&event) {
            // The second time ends the process at once.
            if stopping.swap(true, Ordering::Relaxed) {
                give_back();
            }
            interrupt();
        }
    }
}

/// Whether somebody wants it to stop.
fn stops(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return false };
    match code {
        KeyCode::Char('q') => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// What Ctrl-C does on a terminal without a board.
fn interrupt() {
    #[cfg(unix)]
    {
        use rustix::process::{Signal, getpid, kill_process};
        let _ = kill_process(getpid(), Signal::INT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_stop_it() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(stops(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(stops(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!stops(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
    }
}
