import type { JSX } from 'preact';
import { sessionEnded, signIn } from '../lib/berth.ts';
import { text } from '../text.ts';
import { Brand } from '../ui/brand.tsx';
import { Field, Form, type Values } from '../ui/parts.tsx';

export function SignInPage(): JSX.Element {
  const submit = async (values: Values): Promise<void> => {
    const problem = await signIn(values.get('key').trim());
    if (problem !== undefined) throw new Error(text.signIn.refused(problem));
  };
  return (
    <main class="sign-in">
      <Brand />
      <div class="panel">
        <header>
          <h1>{text.signIn.title}</h1>
        </header>
        {sessionEnded.value ? (
          <p class="stale" role="status">
            {text.signIn.ended}
          </p>
        ) : null}
        <Form submit={text.signIn.submit} onSubmit={submit}>
          <Field
            label={text.signIn.key}
            name="key"
            type="password"
            placeholder="key-…"
            required
            autofocus
            hint={text.signIn.hint}
          />
        </Form>
      </div>
    </main>
  );
}
