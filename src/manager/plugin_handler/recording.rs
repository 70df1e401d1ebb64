//! A handler that accepts everything, unless told otherwise, and remembers what it was asked.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{HandlerError, Plugin, PluginHandler, RegisterError};
use crate::manager::{BoxFuture, lock};

/// One call of a [`PluginHandler`] method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedCall {
    /// [`PluginHandler::validate`].
    Validate(Plugin),
    /// [`PluginHandler::register`].
    Register(Plugin),
    /// [`PluginHandler::deregister`] with name and endpoint.
    Deregister(String, Option<String>),
}

impl RecordedCall {
    /// The plugin's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Validate(plugin) | Self::Register(plugin) => &plugin.name,
            Self::Deregister(name, _) => name,
        }
    }
}

/// Records calls. Answers are set in advance, one for each call; without one the answer is "fine".
#[derive(Debug, Default)]
pub struct RecordingHandler {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<RecordedCall>,
    validate_errors: VecDeque<String>,
    register_errors: VecDeque<String>,
    register_delay: Duration,
    panic_in_register: bool,
}

impl RecordingHandler {
    /// All calls so far.
    pub fn calls(&self) -> Vec<RecordedCall> {
        lock(&self.state).calls.clone()
    }

    /// The next `validate` fails with `error`.
    pub fn refuse_validation(&self, error: &str) {
        lock(&self.state).validate_errors.push_back(error.into());
    }

    /// The next `register` fails with `error`.
    pub fn refuse_registration(&self, error: &str) {
        lock(&self.state).register_errors.push_back(error.into());
    }

    /// Every `register` from now on takes this long.
    pub fn delay_registration(&self, delay: Duration) {
        lock(&self.state).register_delay = delay;
    }

    /// The next `register` panics.
    pub fn panic_in_registration(&self) {
        lock(&self.state).panic_in_register = true;
    }
}

impl PluginHandler for RecordingHandler {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let mut state = lock(&self.state);
        state.calls.push(RecordedCall::Validate(plugin.clone()));
        state
            .validate_errors
            .pop_front()
            .map_or(Ok(()), |error| Err(error.into()))
    }

    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), RegisterError>> {
        Box::pin(async move {
            let (delay, panics, error) = {
                let mut state = lock(&self.state);
                state.calls.push(RecordedCall::Register(plugin.clone()));
                let panics = std::mem::take(&mut state.panic_in_register);
                (
                    state.register_delay,
                    panics,
                    state.register_errors.pop_front(),
                )
            };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stop.cancelled() => return Err(RegisterError::Refused("context canceled".into())),
            }
            assert!(!panics, "a handler that panics");
            error.map_or(Ok(()), |error| Err(RegisterError::Refused(error.into())))
        })
    }

    fn deregister<'a>(&'a self, name: &'a str, endpoint: Option<&'a str>) -> BoxFuture<'a, ()> {
        let call = RecordedCall::Deregister(name.to_owned(), endpoint.map(str::to_owned));
        lock(&self.state).calls.push(call);
        Box::pin(async {})
    }
}
