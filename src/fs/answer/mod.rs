//! The answer to each kind of request: unpack the request, call the layers below, reply.

mod attributes;
pub(in crate::fs) mod caller;
mod controls;
pub(in crate::fs) mod dispatcher;
mod forms;
mod numbers;
mod open;
mod open_decoded;
mod program_attributes;
mod read;
mod recognize;
mod requests;
mod takeover;
