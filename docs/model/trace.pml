/* Definitions of sessions.pml for the replay of a trace: what the daemon's log has told of one session.
 * check.py writes the file that the environment variable TRACE names: five budgets, then a line for each
 * event with its code and two numbers. Spin finds `at` to reach the end of the trace where the model accepts it.
 */
#define MOST_EVENTS 250
#define OPENED 1
#define GIVEN_UP 2
#define TAKEN_OVER 3
#define ATTACHED 4
#define SNAPSHOT 5
#define RESTORED 6
#define CRASHED 7
#define DRAINED 8

hidden byte t_event[MOST_EVENTS], t_x[MOST_EVENTS], t_y[MOST_EVENTS], t_need[MOST_EVENTS];
hidden byte t_cut[MOST_EVENTS], t_snap[MOST_EVENTS], t_drain[MOST_EVENTS], t_shed[MOST_EVENTS];
hidden byte t_end;
byte at; /* the next event of the trace */

/* The log may lack its last lines before a crash. */
#define MAY(event, x, y) (at < t_end && (t_event[at] == event && t_x[at] == x && t_y[at] == y || \
  t_event[at] == CRASHED && event <= SNAPSHOT))

/* Whether an event to come needs a command, a cut and so on: the search is short where the model does
 * nothing that no event asks for. */
#define MAY_ISSUE(seq) (at < t_end && seq <= t_need[at])
#define MAY_HELLO (at < t_end && (t_event[at] == OPENED || t_event[at] == GIVEN_UP))
#define MAY_CUT (at < t_end && t_cut[at])
#define MAY_SNAP (at < t_end && t_snap[at])
#define MAY_DRAIN (at < t_end && t_drain[at])
#define MAY_SHED (at < t_end && t_shed[at])

#define NOTE(event, x, y) \
  if \
  :: t_event[at] == event && t_x[at] == x && t_y[at] == y -> at++; assert(at < t_end) \
  :: else -> skip \
  fi

inline read_trace() {
  c_code {
    FILE* file = fopen(getenv("TRACE"), "r");
    int a = 0, b = 0, d = 0, e = 0, f = 0, n = 0;
    if (!file || fscanf(file, "%d %d %d %d %d", &a, &b, &d, &e, &f) != 5) exit(3);
    now.cuts = a; now.late = b; now.crashes = d; now.drains = e; now.snaps = f;
    while (n < 250 && fscanf(file, "%d %d %d", &a, &b, &d) == 3) {
      t_event[n] = a; t_x[n] = b; t_y[n] = d; n++;
    }
    t_end = n;
    for (a = n - 1; a >= 0; a--) {
      int what = t_event[a], more = a + 1 < n;
      t_need[a] = t_x[a] > t_y[a] ? t_x[a] : t_y[a];
      if (more && what != TAKEN_OVER && what != ATTACHED && what != SNAPSHOT && t_need[a + 1] > t_need[a])
        t_need[a] = t_need[a + 1];
      t_cut[a] = what == ATTACHED || (more && what < CRASHED && what != GIVEN_UP && t_cut[a + 1]);
      t_drain[a] = what == DRAINED || (what == SNAPSHOT && more && t_event[a + 1] == DRAINED);
      t_snap[a] = what == SNAPSHOT ? !t_drain[a] : more && what < CRASHED && t_snap[a + 1];
      t_shed[a] = what == GIVEN_UP ? a > 0 && t_event[a - 1] == RESTORED
                                   : more && what != ATTACHED && t_shed[a + 1];
    }
    fclose(file);
  }
}
