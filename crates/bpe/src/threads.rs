//! Running the same work on several threads with progress reports. If the system cannot start a thread or has little
//! memory, fewer threads are used.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lowlevel::has_room_for_thread;

/// The time between two progress reports.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// The largest number of threads; with more, threads would mainly wait for each other.
const MOST_THREADS: usize = 1024;

/// Reports progress to a caller at intervals; the caller can stop the work.
pub(crate) struct Heartbeat<'p> {
    last: Instant,
    on_progress: &'p mut dyn FnMut(usize) -> bool,
}

impl<'p> Heartbeat<'p> {
    /// Start with nothing done.
    pub(crate) fn new(on_progress: &'p mut dyn FnMut(usize) -> bool) -> Heartbeat<'p> {
        Heartbeat { last: Instant::now(), on_progress }
    }

    /// Report progress if an interval has passed; return an error if the caller stops the work.
    pub(crate) fn beat(&mut self, num_done: usize) -> Result<()> {
        if self.last.elapsed() <= HEARTBEAT {
            return Ok(());
        }
        self.last = Instant::now();
        if (self.on_progress)(num_done) { Ok(()) } else { Err(Error::Interrupted) }
    }

    /// Report that everything is done.
    pub(crate) fn finish(self, num_done: usize) {
        (self.on_progress)(num_done);
    }
}

/// Run `work` on several threads, including this one, and return the results. If `work` fails on one thread, its
/// argument becomes true on the others, which should return.
pub(crate) fn gather<T: Send>(
    num_threads: usize,
    work: impl Fn(&AtomicBool) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let stop = AtomicBool::new(false);
    let work = || {
        let outcome = work(&stop);
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..num_threads.min(MOST_THREADS)).map_while(|_| start(scope, work)).collect();
        let mut gathered = vec![work()];
        gathered.extend(others.into_iter().map(join));
        gathered.into_iter().collect()
    })
}

/// Start a thread, if there is room for it.
fn start<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    if has_room_for_thread() { Builder::new().spawn_scoped(scope, work).ok() } else { None }
}

/// Like `gather`, but this thread only calls `on_progress` at each heartbeat. If that returns false or a worker fails,
/// `stop` is set, which the workers must check.
pub(crate) fn gather_watched<T: Send>(
    num_threads: usize,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut() -> bool,
    work: impl Fn() -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let work = || {
        let outcome = work();
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    };
    let gathered = std::thread::scope(|scope| {
        let (alive, all_done) = channel::<()>();
        let workers: Vec<_> = (0..num_threads.clamp(1, MOST_THREADS))
            .map_while(|_| {
                let alive = alive.clone();
                let work = &work;
                let watched = move || {
                    let _alive = alive;
                    work()
                };
                start(scope, watched)
            })
            .collect();
        drop(alive);
        if workers.is_empty() {
            return work();
        }
        while all_done.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
            if !on_progress() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let mut gathered = Vec::new();
        for worker in workers {
            gathered.extend(join(worker)?);
        }
        Ok(gathered)
    })?;
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(gathered) }
}

/// The result of a worker. A panic is propagated: a bug must not look like an interrupt.
fn join<T>(worker: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_not_an_interruption() {
        let this = std::thread::current().id();
        let outcome = std::panic::catch_unwind(|| {
            gather(3, |_| {
                if std::thread::current().id() == this {
                    return Ok(1);
                }
                std::panic::resume_unwind(Box::new("a mistake"))
            })
        });
        assert!(outcome.is_err_and(|panic| panic.downcast_ref() == Some(&"a mistake")));
    }

    #[test]
    fn a_heartbeat_fails_after_the_caller_has_stopped() {
        let mut heard = Vec::new();
        let mut on_progress = |num_done| {
            heard.push(num_done);
            false
        };
        let mut heartbeat = Heartbeat::new(&mut on_progress);
        assert!(heartbeat.beat(1).is_ok(), "the interval has not passed");
        std::thread::sleep(2 * HEARTBEAT);
        assert!(matches!(heartbeat.beat(2), Err(Error::Interrupted)));
        heartbeat.finish(3);
        assert_eq!(heard, [2, 3]);
    }
}
