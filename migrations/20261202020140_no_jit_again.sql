-- No function compiles its statements. A setting like enable_nestloop = off gives some plans a cost that is above
-- jit_above_cost: a report of 0.02 s took 4 s of CPU on a server with LLVM. What a call starts
-- inherits the setting, so that functions that only others call need none; triggers run in users' statements and have it.
-- Once more, for the functions that came or were replaced since.

do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace
           and (p.proname ~ '^(task|worker|fleet)_' and p.prorettype = 'jsonb'::regtype
                or p.proname ~ '^internal_' and p.prorettype = 'trigger'::regtype)
    loop
        execute format('alter function %s set jit = off', v_function);
    end loop;
end
$$;
