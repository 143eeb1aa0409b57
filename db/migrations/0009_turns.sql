-- Turns at what everybody writes: an event's standing sections are a counter each, and of two SERIALIZABLE transactions
-- that count at once one fails. Whoever locks the event's table of these before its snapshot is taken waits instead
-- (db/turns.ts). They hold nothing. Frozen once landed.

create table turn_00 ();
create table turn_01 ();
create table turn_02 ();
create table turn_03 ();
create table turn_04 ();
create table turn_05 ();
create table turn_06 ();
create table turn_07 ();
create table turn_08 ();
create table turn_09 ();
create table turn_10 ();
create table turn_11 ();
create table turn_12 ();
create table turn_13 ();
create table turn_14 ();
create table turn_15 ();
create table turn_16 ();
create table turn_17 ();
create table turn_18 ();
create table turn_19 ();
create table turn_20 ();
create table turn_21 ();
create table turn_22 ();
create table turn_23 ();
create table turn_24 ();
create table turn_25 ();
create table turn_26 ();
create table turn_27 ();
create table turn_28 ();
create table turn_29 ();
create table turn_30 ();
create table turn_31 ();
