-- The look for long numbers is cheap: an answer of 32 MiB of params is looked through in every claim that carries it.

create or replace function public.internal_is_unreadable(p_value jsonb) returns boolean
language plpgsql immutable security definer set search_path = '' as $$
declare
    c_digits constant int := 4000;  -- Python refuses 4,301 of them
    v_text text;
begin
    if p_value @? 'strict $.**{65}' then
        return true;
    end if;
    v_text := p_value::text;
    -- A text without as many digits in a row as an expression can count has no such number. The digits may be a string's.
    return octet_length(v_text) > c_digits
       and v_text ~ '[0-9]{255}'
       and p_value @? 'strict $.** ? (@.type() == "number" && (@ >= 1e4000 || @ <= -1e4000))';
end
$$;
